"""The section [message] with format = "debezium"."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from headrace.settings.adapters import FormatCapabilities, MessageSettings
from headrace_common.section import Section, Topic


class DebeziumSettings(Section):
    """[message.debezium]: with format = "debezium", what Debezium's MySQL connector has properties for."""

    name: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="The logical name, in source.name and in the names of schemas (topic.prefix). Default: the "
        "destination's name.",
    )
    schemas: bool = Field(
        default=True,
        description="Whether key and value carry their schema, as the JSON converter writes them (schemas.enable).",
    )
    tombstones: bool = Field(
        default=True,
        description="A record with the key and without a value behind each delete, for compacted topics "
        "(tombstones.on.delete).",
    )
    time_precision: Literal["adaptive_time_microseconds", "adaptive", "connect"] = Field(
        default="adaptive_time_microseconds",
        description="How DATE, TIME and DATETIME are counted (time.precision.mode).",
    )
    decimal: Literal["precise", "string", "double"] = Field(
        default="precise",
        description="DECIMAL as Kafka Connect's Decimal, as text, or rounded (decimal.handling.mode).",
    )
    bigint_unsigned: Literal["precise", "long"] = Field(
        default="precise",
        description="BIGINT UNSIGNED as Decimal, or as a signed number that turns negative from 2^63 on, which is "
        "Debezium's default (bigint.unsigned.handling.mode).",
    )
    binary: Literal["bytes", "base64", "base64-url-safe", "hex"] = Field(
        default="bytes",
        description="Binary strings as bytes, which JSON shows as base64, or as text (binary.handling.mode).",
    )
    transaction_topic: Topic = Field(
        default="",
        description="Where the begin and end of each transaction go; changes of rows then say where they stand in it. "
        'Debezium\'s own name is "NAME.transaction"; "" is off (provide.transaction.metadata, topic.transaction).',
    )
    schema_topic: Topic = Field(
        default="",
        description='Where schema changes go. Debezium\'s own is "NAME"; "" is off (include.schema.changes).',
    )


class DebeziumMessageSettings(MessageSettings):
    """[message] format = "debezium": Debezium's change events, in JSON. A message has one row."""

    debezium: DebeziumSettings = Field(
        default=DebeziumSettings(), description="What Debezium's connector has properties for."
    )

    @field_validator("rows_per_message")
    @classmethod
    def _check_rows(cls, value: int) -> int:
        if value > 1:
            raise ValueError('has no meaning with format = "debezium": a message has one row')
        return value

    @property
    def capabilities(self) -> FormatCapabilities:
        topics = self.debezium.transaction_topic, self.debezium.schema_topic
        return FormatCapabilities(
            topics=frozenset(topic for topic in topics if topic), marks=bool(self.debezium.transaction_topic)
        )
