"""The sections of headrace.toml as models: every key with its type, default and description."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from headrace.native import Choice
from headrace.settings.values import readable
from headrace_common.section import MIB, Folder, Int, NewFile, Seconds, SecondsOrOff, Section, Size
from headrace_common.values import parse_host_port


def _host_pattern(value: str) -> None:
    if value != "*" and not re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", value):
        raise ValueError(f'{value!r} is no host name, without a port, nor "*." and one, nor "*"')


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
    native: Choice = Field(
        default="auto",
        description="auto: native code for what is done a row at a time, where it is installed; off: none.",
    )
    drain_timeout: Seconds = Field(
        default=10.0, description="How long a stop waits for confirmation of what is in flight."
    )
    checkpoint_interval: Seconds = Field(default=1.0, description="Time between two writes of the confirmed position.")
    checkpoint_transactions: Int = Field(
        default=10_000,
        ge=1,
        le=1_000_000_000,
        description="After so many confirmed transactions the position is written before that time.",
    )
    queue_bytes: Size = Field(
        default=96 * MIB,
        description="Budget of all destinations' queues together, in addition to each one's [queue] bytes. Half of it "
        "is shared equally, the other half goes to the first that need it.",
    )
    spool: Folder = Field(
        default=Path("var/spool"),
        description="Folder where rows of prepared XA transactions, and those after a SAVEPOINT, wait on disk, and "
        "where events of 16 MB and more pass through; relative to the working directory.",
    )
    watch: SecondsOrOff = Field(
        default=2.0,
        description="Time between two checks of the destinations folder, whose files are taken over while running; "
        "0: only on SIGHUP.",
    )

    max_destinations: Int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Destinations that this daemon runs at most when several share them; 0: no limit.",
    )


class StateSettings(Section):
    """[state]: where positions and schema history are kept. A destination's file may have a section of its own."""

    store: str = Field(
        default="auto",
        description="Kind of store. auto: kafka for a destination with delivery exactly_once, which knows no other; "
        "else zookeeper or etcd when there is that section, which knows no sqlite; else sqlite, the embedded one.",
    )
    path: NewFile = Field(
        default=Path("var/headrace.db"),
        description="The store's file; relative to the working directory. Lock files are next to it.",
    )


class HttpSettings(Section):
    """[http]: health, metrics, the status page, and what operators ask of the daemon."""

    listen: Annotated[str, readable(lambda value: value and parse_host_port(value))] = Field(
        default="127.0.0.1:9180",
        description='Address and port of the status page, /health, /metrics and commands; "" turns them off.',
    )
    token: SecretStr = Field(
        default=SecretStr(""),
        description="What commands that change something bring along, 16 characters or more. Default: the daemon makes "
        "one and keeps it in token_file.",
    )
    token_file: NewFile = Field(
        default=Path("var/headrace.token"),
        description="Where the daemon keeps the token that it has made, for its own user alone; relative to the "
        "working directory.",
    )
    tls_certificate: NewFile | None = Field(default=None, description="PEM file with our certificate. Default: no TLS.")
    tls_key: NewFile | None = Field(default=None, description="PEM file with its key.")
    allow_plain: bool = Field(
        default=False, description="Whether commands are taken from other machines without TLS: the token is readable."
    )
    allowed_hosts: list[Annotated[str, readable(_host_pattern)]] = Field(
        default=[],
        description='Names by which the daemon may be asked, as in `["headrace.example.com", "*.svc.cluster.local"]`; '
        '"*" allows all. Addresses, localhost, names below it, the machine\'s own name and the name in listen are '
        "always allowed. Other names are refused: a site's page can have its own name lead to the daemon.",
    )
    tables: Int = Field(
        default=200,
        ge=0,
        le=10_000,
        description="Tables of a destination whose rows are counted each by itself, in metrics and the API; those that "
        'come after them are counted together, as "(others)".',
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if 0 < len(self.token.get_secret_value()) < 16 or not self.token.get_secret_value().isascii():
            raise ValueError("token should have 16 characters or more, all of them ASCII")
        return self

    @property
    def address(self) -> tuple[str, int] | None:
        """Returns host and port, or None if HTTP is off."""
        return parse_host_port(self.listen) if self.listen else None


class LogSettings(Section):
    """[log]: what goes to standard error."""

    format: Literal["console", "json"] = Field(default="console", description="Lines for people, or JSON objects.")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe lines that are written."
    )
