"""The section [zookeeper]."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from headrace.settings.adapters import ClusterSettings
from headrace.settings.section import Seconds
from headrace.settings.values import split_servers


class ZooKeeperSettings(ClusterSettings):
    """[zookeeper]: lets several daemons share the destinations. Without this section a file lock and an embedded store
    serve one daemon."""

    service: ClassVar[str] = "zookeeper"

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
