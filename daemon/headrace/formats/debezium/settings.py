"""The section [message] with format = "debezium"."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from headrace.formats.debezium.schemas import added_field
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
        description="A record with the key and without a value after each delete, for compacted topics "
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

    query: bool = Field(
        default=False,
        description="The statement's text in source.query, where the source writes it: binlog_rows_query_log_events, "
        "in MariaDB binlog_annotate_row_events (include.query).",
    )
    unwrap: bool = Field(
        default=False,
        description="The row itself in place of the envelope (the transformation ExtractNewRecordState).",
    )
    deletes: Literal["tombstone", "rewrite", "rewrite-with-tombstone", "drop"] = Field(
        default="tombstone",
        description="With unwrap, what a delete becomes: tombstone: that alone; rewrite: the row before, and "
        "`__deleted` in all rows; drop: nothing (delete.tombstone.handling.mode). `tombstones` says nothing then.",
    )
    add_fields: tuple[str, ...] = Field(
        default=(),
        description='With unwrap, fields of the envelope that rows get: ["op", "table", "source.ts_ms"] are `__op`, '
        "`__table` and `__source_ts_ms` (add.fields).",
    )

    @field_validator("add_fields")
    @classmethod
    def _check_fields(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            try:
                added_field(name)
            except LookupError as error:
                raise ValueError(f"{name!r} is no field of the envelope or of source") from error
        return value

    @model_validator(mode="after")
    def _check_unwrap(self) -> Self:
        strange = sorted(self.model_fields_set & {"deletes", "add_fields"})
        if strange and not self.unwrap:
            raise ValueError(f"{', '.join(strange)} has no meaning without unwrap")
        return self


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

    def with_topic_prefix(self, prefix: str) -> Self:
        topics = {key: getattr(self.debezium, key) for key in ("transaction_topic", "schema_topic")}
        named = {key: prefix + topic for key, topic in topics.items() if topic}
        return self.model_copy(update={"debezium": self.debezium.model_copy(update=named)})

    @property
    def capabilities(self) -> FormatCapabilities:
        topics = self.debezium.transaction_topic, self.debezium.schema_topic
        return FormatCapabilities(
            topics=frozenset(topic for topic in topics if topic),
            marks=bool(self.debezium.transaction_topic),
            queries=self.debezium.query,
            readable=not self.debezium.unwrap,
        )
