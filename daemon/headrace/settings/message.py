"""The base of all configuration sections, and the sections [message] and [message.debezium]."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from headrace.settings.values import parse_duration, parse_int, parse_size

KIB = 1 << 10
MIB = 1 << 20

Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=86400 * 7, allow_inf_nan=False)]
SecondsOrOff = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=86400 * 7, allow_inf_nan=False)]
"""0 means off."""
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1 * KIB, le=1 << 40)]
SizeOrOff = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 40)]
"""0 means off."""
Int = Annotated[int, BeforeValidator(parse_int)]


def _check_topic(value: str) -> str:
    if value in (".", ".."):
        raise ValueError('should not be "." or "..": Kafka has no such topics')
    return value


Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,249}$"), AfterValidator(_check_topic)]


def _check_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, OSError, ValueError) as error:
        raise ValueError('should be a time zone such as "UTC" or "Asia/Shanghai"') from error
    return value


class Section(BaseModel):
    """The base of all sections: an unknown key is an error, a value can't change, an error never shows a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


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


class MessageSettings(Section):
    """[message]: what a message looks like."""

    format: Literal["canal", "debezium"] = Field(
        default="canal", description="canal: Canal's flat JSON; debezium: Debezium's change events, in JSON."
    )
    rows_per_message: Int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="At most this many rows a message; 0: a message a rows event. Debezium's messages have one row.",
    )
    enum: Literal["label", "index"] = Field(
        default="label", description="Canal's format: ENUM and SET as their labels, or as numbers as in Canal."
    )
    binary: Literal["base64", "hex", "latin1"] = Field(
        default="base64",
        description="Canal's format: binary strings and geometries in base64, in hexadecimal digits, or as in Canal, "
        "each byte as the character of ISO 8859-1.",
    )
    time_zone: Annotated[str, AfterValidator(_check_zone)] = Field(
        default="UTC",
        description='Canal\'s format: the zone that TIMESTAMP is printed in, such as "UTC" or "Asia/Shanghai".',
    )
    compat: Literal["none", "canal"] = Field(
        default="none",
        description='canal: enum = "index" and binary = "latin1" unless given, es in whole seconds, no `_pos`.',
    )
    debezium: DebeziumSettings = Field(
        default=DebeziumSettings(), description='With format = "debezium": what Debezium has properties for.'
    )

    @model_validator(mode="after")
    def _check_format(self) -> Self:
        if self.format == "debezium":
            strange = sorted(self.model_fields_set & {"enum", "binary", "time_zone", "compat"})
            if strange:
                raise ValueError(f'{", ".join(strange)} has no meaning with format = "debezium"')
            if self.rows_per_message > 1:
                raise ValueError('rows_per_message has no meaning with format = "debezium": a message has one row')
        return self

    @property
    def enum_index(self) -> bool:
        """Whether ENUM and SET are published as numbers."""
        return self._chosen("enum", "index") == "index"

    @property
    def binary_text(self) -> Literal["base64", "hex", "latin1"]:
        """How Canal's format prints binary strings."""
        chosen: Literal["base64", "hex", "latin1"] = self._chosen("binary", "latin1")  # type: ignore[assignment]
        return chosen

    def _chosen(self, key: str, canals: str) -> str:
        """What is given counts before what `compat` says."""
        given = key in self.model_fields_set or self.compat == "none"
        return str(getattr(self, key)) if given else canals
