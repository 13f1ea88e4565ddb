"""The kinds of [sink] as models: every key with its type, its default and what it means."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
from headrace.rules.topics import ANY_NAME, KAFKA, ROCKETMQ, TopicNames
from headrace.settings.message import Int, SecondsOrOff, Section, SizeOrOff


class JsonlSinkSettings(Section):
    """[sink] type = "jsonl": a line a message."""

    type: Literal["jsonl"] = Field(description="The kind of sink.")
    path: str = Field(
        min_length=1,
        description='The file that lines are appended to, relative to the working directory; "-" is standard output.',
    )
    rotate_bytes: SizeOrOff = Field(
        default=0, description="A new file is begun before the present one becomes larger than this; 0: never."
    )
    rotate_after: SecondsOrOff = Field(
        default=0.0,
        description="A new file is begun whenever so much time has passed, in seconds; counted from 1970 UTC, so 1h "
        "is at each full hour; 0: never.",
    )
    keep_files: Int = Field(
        default=0, ge=0, le=1_000_000, description="Rotated files that are kept, the oldest go; 0: all."
    )
    compression: Literal["none", "gzip", "zstd"] = Field(
        default="none", description="Compression of the rotated files; the present one is plain text."
    )

    @property
    def parks(self) -> bool:
        """A file refuses no message."""
        return False

    @model_validator(mode="after")
    def _check_rotation(self) -> Self:
        rotates = bool(self.rotate_bytes or self.rotate_after)
        if rotates and self.path == "-":
            raise ValueError('rotate_bytes and rotate_after have no meaning with path = "-"')
        if not rotates and (self.keep_files or self.compression != "none"):
            raise ValueError("keep_files and compression need rotate_bytes or rotate_after")
        return self


class NullSinkSettings(Section):
    """[sink] type = "null": publishes nowhere and confirms at once; for measuring."""

    type: Literal["null"] = Field(description="The kind of sink.")

    @property
    def parks(self) -> bool:
        """It refuses no message."""
        return False


SinkSettings = KafkaSinkSettings | RabbitMqSinkSettings | RocketMqSinkSettings | JsonlSinkSettings | NullSinkSettings
SINKS: dict[str, type[Section]] = {
    "kafka": KafkaSinkSettings,
    "rabbitmq": RabbitMqSinkSettings,
    "rocketmq": RocketMqSinkSettings,
    "jsonl": JsonlSinkSettings,
    "null": NullSinkSettings,
}
"""The sections that `[sink] type` chooses from, by that type."""


def topic_names(sink: SinkSettings) -> TopicNames:
    """Which names the sink takes for topics."""
    if isinstance(sink, RabbitMqSinkSettings):
        return ANY_NAME
    return ROCKETMQ if isinstance(sink, RocketMqSinkSettings) else KAFKA
