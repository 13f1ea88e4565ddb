"""The sections of headrace.toml as models: every key with its type, its default and what it means."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from headrace.settings.message import Int, Seconds, SecondsOrOff, Section
from headrace.settings.values import parse_host_port, split_servers


class DaemonSettings(Section):
    """[daemon]: the process."""

    node: str = Field(
        default_factory=socket.gethostname, min_length=1, description="Name of this daemon. Default: the host name."
    )
    destinations: Path = Field(
        default=Path("destinations"),
        description="Folder with one file a destination; relative to the folder of headrace.toml.",
    )
    event_loop: Literal["auto", "asyncio", "uvloop"] = Field(
        default="auto", description="auto: uvloop when it is installed, which is faster; asyncio: Python's own."
    )
    drain_timeout: Seconds = Field(
        default=10.0, description="How long a stop waits for confirmation of what is in flight, in seconds."
    )
    checkpoint_interval: Seconds = Field(
        default=1.0, description="Time between two writes of the confirmed position, in seconds."
    )
    checkpoint_transactions: Int = Field(
        default=10_000,
        ge=1,
        le=1_000_000_000,
        description="After so many confirmed transactions the position is written before that time.",
    )
    spool: Path = Field(
        default=Path("var/spool"),
        description="Folder where rows of prepared XA transactions wait on disk for their XA COMMIT; relative to the "
        "working directory.",
    )
    watch: SecondsOrOff = Field(
        default=2.0,
        description="Time between two looks at the destinations folder, whose files are taken over while running, in "
        "seconds; 0: only on SIGHUP.",
    )

    max_destinations: Int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Destinations that this daemon runs at most when several share them by ZooKeeper; 0: no limit.",
    )


class ZooKeeperSettings(Section):
    """[zookeeper]: lets several daemons share the destinations. Without this section a file lock and an embedded store
    serve one daemon."""

    hosts: Annotated[tuple[str, ...], BeforeValidator(split_servers)] = Field(
        description='The ensemble: "host:port", comma-separated, or a list.'
    )
    root: str = Field(
        default="/headrace",
        pattern=r"^(/[A-Za-z0-9_.-]+)+$",
        description="Node that everything of this cluster is kept below.",
    )
    session_timeout: Annotated[Seconds, Field(ge=2, le=120)] = Field(
        default=10.0,
        description="After so long without a sign of life, in seconds, ZooKeeper gives a daemon's destinations to "
        "another; the servers may correct it to between 2 and 20 of their ticks.",
    )
    auth: SecretStr = Field(
        default=SecretStr(""),
        description='"user:password" (digest): nodes are then made so that only this user can read and change them.',
    )
    tls: Literal["disabled", "required"] = Field(
        default="disabled", description="required: connections are encrypted and the servers' certificates checked."
    )
    tls_ca: Path | None = Field(default=None, description="File of CA certificates; default: the system's.")
    tls_cert: Path | None = Field(default=None, description="Our certificate, for servers that ask for one.")
    tls_key: Path | None = Field(default=None, description="Its private key.")

    @field_validator("auth")
    @classmethod
    def _check_auth(cls, value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if text and not all(text.partition(":")[::2]):
            raise ValueError('should be "user:password"')
        return value

    @model_validator(mode="after")
    def _check_tls(self) -> ZooKeeperSettings:
        if self.tls == "disabled" and (self.tls_ca or self.tls_cert or self.tls_key):
            raise ValueError('tls_ca, tls_cert and tls_key have no meaning with tls = "disabled"')
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        return self


class StateSettings(Section):
    """[state]: where positions and schema history are kept. A destination's file may have a section of its own."""

    store: Literal["auto", "sqlite", "zookeeper", "kafka"] = Field(
        default="auto",
        description="Kind of store. auto: kafka for a destination with delivery exactly_once, which knows no other; "
        "else zookeeper when there is a section [zookeeper], which knows no sqlite; else sqlite, the embedded one.",
    )
    path: Path = Field(
        default=Path("var/headrace.db"),
        description="The store's file; relative to the working directory. Lock files lie beside it.",
    )


class HttpSettings(Section):
    """[http]: health and metrics."""

    listen: str = Field(
        default="127.0.0.1:9180", description='Address and port of /health and /metrics; "" turns them off.'
    )

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        if value:
            parse_host_port(value)
        return value

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, or None when HTTP is off."""
        return parse_host_port(self.listen) if self.listen else None


class LogSettings(Section):
    """[log]: what goes to standard error."""

    format: Literal["console", "json"] = Field(default="console", description="Lines for people, or JSON objects.")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe lines that are written."
    )
