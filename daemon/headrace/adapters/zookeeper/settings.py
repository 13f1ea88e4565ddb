"""The section [zookeeper]."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, SecretStr, model_validator

from headrace.settings.adapters import ClusterSettings
from headrace_common.section import Hosts, Seconds, TlsSection


class ZooKeeperSettings(ClusterSettings, TlsSection):
    """[zookeeper]: lets several daemons share the destinations. Without this section a file lock and an embedded store
    serve one daemon."""

    service: ClassVar[str] = "zookeeper"

    hosts: Hosts = Field(description='The ensemble: "host:port", comma-separated, or a list.')
    root: str = Field(
        default="/headrace",
        pattern=r"^(/[A-Za-z0-9_.-]+)+$",
        description="Node that everything of this cluster is kept below.",
    )
    session_timeout: Annotated[Seconds, Field(ge=2, le=120)] = Field(
        default=10.0,
        description="After so long without a sign of life, ZooKeeper gives a daemon's destinations to "
        "another; the servers may correct it to between 2 and 20 of their ticks.",
    )
    user: str = Field(
        default="", description="The account (digest): nodes are then made so that it alone can read and change them."
    )
    password: SecretStr = Field(default=SecretStr(""), description='Its password; best as "${NAME}".')
    tls: Literal["disabled", "required"] = Field(
        default="disabled", description="required: connections are encrypted and the servers' certificates checked."
    )

    @model_validator(mode="after")
    def _check_account(self) -> Self:
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("user and password go together")
        if ":" in self.user:
            raise ValueError("user should have no colon")
        return self
