"""The section [etcd]."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, SecretStr, model_validator

from headrace.settings.adapters import ClusterSettings
from headrace_common.section import Hosts, Seconds, TlsSection


class EtcdSettings(ClusterSettings, TlsSection):
    """[etcd]: lets several daemons share the destinations, as [zookeeper] does; only one of the two can be given."""

    service: ClassVar[str] = "etcd"

    endpoints: Hosts = Field(description='The servers: "host:port", comma-separated, or a list.')
    root: str = Field(
        default="/headrace",
        pattern=r"^(/[A-Za-z0-9_.-]+)+$",
        description="Everything of this cluster is kept in keys that begin with this and a slash.",
    )
    session_timeout: Annotated[Seconds, Field(ge=2, le=120)] = Field(
        default=10.0,
        description="After so long without a sign of life, etcd gives a daemon's destinations to another: the TTL of "
        "its lease. etcd counts whole seconds, and grants no less than one and a half of its election timeouts.",
    )
    user: str = Field(default="", description="The account, where etcd has authentication enabled.")
    password: SecretStr = Field(default=SecretStr(""), description='Its password; best as "${NAME}".')
    tls: Literal["disabled", "required"] = Field(
        default="disabled", description="required: connections are encrypted and the servers' certificates checked."
    )

    @model_validator(mode="after")
    def _check_account(self) -> Self:
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("user and password go together")
        return self
