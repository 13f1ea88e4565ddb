"""The section [sink] of type rocketmq as a model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from headrace.parking.settings import RetrySettings
from headrace.rules.templates import Template
from headrace.rules.topics import ROCKETMQ
from headrace.settings.adapters import SinkCapabilities
from headrace.settings.values import parse_host_port

TAG_NAMES = ("schema", "table", "type")
"""What may stand in a tag."""


def _addresses(endpoints: str) -> list[tuple[str, int]]:
    parts = [address.strip().removeprefix("http://").removeprefix("https://") for address in endpoints.split(";")]
    return [parse_host_port(part) for part in parts]


class RocketMqSinkSettings(RetrySettings):
    """[sink] type = "rocketmq": a cluster of version 5 behind its proxy."""

    type: Literal["rocketmq"] = Field(description="The kind of sink.")
    endpoints: str = Field(min_length=1, description='The proxy: "host:port", several with ";" between.')
    namespace: str = Field(default="", description="The namespace of the topics.")
    access_key: str = Field(default="", description="The account, where the cluster asks for one.")
    secret_key: SecretStr = Field(default=SecretStr(""), description='Its secret; best as "${NAME}".')
    tag: str = Field(
        default="{table}", description="The tag of a message: text with {schema}, {table} and {type} (INSERT ...)."
    )

    @field_validator("endpoints")
    @classmethod
    def _check_endpoints(cls, value: str) -> str:
        _addresses(value)
        return value

    @field_validator("tag")
    @classmethod
    def _check_tag(cls, value: str) -> str:
        Template.parse(value, TAG_NAMES)
        return value

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each of `endpoints`."""
        return _addresses(self.endpoints)

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
