"""The section [sink] of type canal."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, SecretStr, model_validator

from headrace.settings.adapters import SinkCapabilities, SinkSettings
from headrace_common.section import MIB, Size
from headrace_common.values import check_host

IN_MEMORY = 16 * MIB
"""Maximum bytes of unacknowledged entries that are not on disk."""


def _parse_listen(value: object) -> object:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError('should be an address and a port, such as "127.0.0.1:11111"')
    return check_host(host.strip("[]")), int(port)


Listen = Annotated[
    tuple[str, int], BeforeValidator(_parse_listen), PlainSerializer(lambda at: f"{at[0]}:{at[1]}", return_type=str)
]


class CanalSinkSettings(SinkSettings):
    """[sink] type = "canal": a server that Canal's own clients connect to."""

    type: Literal["canal"] = Field(description="The kind of sink.")
    listen: Listen = Field(
        default=("127.0.0.1", 11111),
        description="Address and port (canal.ip, canal.port). Destinations of one process may share them.",
    )
    user: str = Field(default="", description='Who may connect (canal.user); "": everybody.')
    password: SecretStr = Field(
        default=SecretStr(""), description='With user: the password; best as "${NAME}" or "${file:/path}".'
    )
    max_store: Size = Field(
        default=1024 * MIB,
        description="Bytes of entries that may wait on disk for the client, in addition to 16 MiB in memory; then "
        "reading waits.",
    )

    zookeeper_path: Annotated[str, Field(pattern=r"^(/[^/\s]+)*$")] = Field(
        default="",
        description="The path in ZooKeeper by which Canal's clients find the daemon that has the destination "
        '(newClusterConnector), which is "/otter/canal" for them; "": nothing is written there. It needs [zookeeper], '
        "and lies outside of its root.",
    )
    advertise: Listen | None = Field(
        default=None,
        description="With zookeeper_path: the address and port that clients find there (canal.register.ip), when it is "
        "not listen.",
    )

    @property
    def address(self) -> str:
        """Returns the address of the server for clients: host:port."""
        host, port = self.advertise or self.listen
        return f"{host}:{port}"

    @property
    def capabilities(self) -> SinkCapabilities:
        return SinkCapabilities(
            has_topics=False,
            one_log=True,
            gathers=IN_MEMORY,
            message_format="canal-protobuf",
            shares_by="zookeeper_path" if self.zookeeper_path else "",
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.user) is not bool(self.password.get_secret_value()):
            raise ValueError("user and password belong together")
        if self.advertise is not None and not self.zookeeper_path:
            raise ValueError("advertise has no meaning without zookeeper_path")
        if self.zookeeper_path and self.advertise is None and self.listen[0] in ("0.0.0.0", "::"):
            raise ValueError("with zookeeper_path and a listen for all addresses, advertise has to be given")
        return self
