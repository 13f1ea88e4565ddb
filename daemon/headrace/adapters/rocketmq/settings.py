"""The section [sink] of type rocketmq as a model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from headrace.parking.settings import RetrySettings
from headrace.rules.templates import Template
from headrace.rules.topics import ROCKETMQ
from headrace.settings.adapters import SinkCapabilities
from headrace_common.section import Hosts
from headrace_common.values import parse_host_port

TAG_NAMES = ("schema", "table", "type")
"""Names that a tag may contain."""


class RocketMqSinkSettings(RetrySettings):
    """[sink] type = "rocketmq": a cluster of version 5 behind its proxy."""

    type: Literal["rocketmq"] = Field(description="The kind of sink.")
    hosts: Hosts = Field(description='Proxies of the cluster: "host:port", comma-separated, or a list.')
    namespace: str = Field(default="", description="The namespace of the topics.")
    access_key: str = Field(default="", description="The account, where the cluster asks for one.")
    secret_key: SecretStr = Field(default=SecretStr(""), description='Its secret; best as "${NAME}".')
    tag: str = Field(
        default="{table}", description="The tag of a message: text with {schema}, {table} and {type} (INSERT ...)."
    )

    @field_validator("tag")
    @classmethod
    def _check_tag(cls, value: str) -> str:
        Template.parse(value, TAG_NAMES)
        return value

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Returns host and port of each proxy."""
        return [parse_host_port(host) for host in self.hosts]

    @property
    def capabilities(self) -> SinkCapabilities:
        return SinkCapabilities(
            topic_names=ROCKETMQ,
            needs_topic=True,
            tag=Template.parse(self.tag, TAG_NAMES),
            retries=True,
            parks=self.on_failure == "park",
            parks_by="on_failure",
        )
