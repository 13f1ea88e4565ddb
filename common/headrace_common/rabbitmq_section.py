"""The keys of a connection to RabbitMQ."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from headrace_common.section import Hosts, Seconds, TlsSection
from headrace_common.values import parse_host_port

QueueType = Literal["quorum", "classic"]


class RabbitMqSection(TlsSection):
    """The base of sections about a RabbitMQ cluster."""

    hosts: Hosts = Field(description='Nodes of the cluster, tried in turn: "host:port", comma-separated, or a list.')
    virtual_host: str = Field(default="/", min_length=1, description="The virtual host (rabbitmq.virtual.host).")
    user: str = Field(min_length=1, description="The account (rabbitmq.username).")
    password: SecretStr = Field(description='Its password; best as "${NAME}" or "${file:/path}".')
    tls: Literal["disabled", "required"] = Field(
        default="disabled", description="required: the connection is encrypted (amqps)."
    )
    heartbeat: Seconds = Field(default=15.0, description="AMQP heartbeat; at least a second, in whole ones.")

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Returns host and port of each node."""
        return [parse_host_port(host) for host in self.hosts]
