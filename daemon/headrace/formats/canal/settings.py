"""The section [message] with format = "canal"."""

from __future__ import annotations

from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, model_validator

from headrace.settings.adapters import FormatCapabilities, MessageSettings
from headrace.settings.values import readable


def _check_zone(value: str) -> None:
    try:
        ZoneInfo(value)
    except (KeyError, OSError, ValueError) as error:
        raise ValueError('should be a time zone such as "UTC" or "Asia/Shanghai"') from error


class CanalValueSettings(MessageSettings):
    """How both of Canal's formats print values."""

    enum: Literal["label", "index"] = Field(
        default="label", description="ENUM and SET as their labels, or as numbers as in Canal."
    )
    binary: Literal["base64", "hex", "latin1"] = Field(
        default="base64",
        description="Binary strings and geometries in base64, in hexadecimal digits, or as in Canal, each byte as the "
        "character of ISO 8859-1.",
    )
    time_zone: Annotated[str, readable(_check_zone)] = Field(
        default="UTC",
        description='The zone that TIMESTAMP is printed in, such as "UTC" or "Asia/Shanghai".',
    )
    compat: Literal["none", "canal"] = Field(
        default="none",
        description='canal: enum = "index" and binary = "latin1" unless given, es in whole seconds, no `_pos`, no '
        "message about CREATE VIEW and DROP VIEW.",
    )

    @property
    def capabilities(self) -> FormatCapabilities:
        return FormatCapabilities(enum_index=self.enum_index, time_zone=self.time_zone)

    @property
    def enum_index(self) -> bool:
        """Returns whether ENUM and SET are published as numbers."""
        return self._chosen("enum", "index") == "index"

    @property
    def binary_text(self) -> str:
        """Returns how Canal's format prints binary strings."""
        return self._chosen("binary", "latin1")

    def _chosen(self, key: str, canals: str) -> str:
        """Returns a given value, which has precedence over that of `compat`."""
        given = key in self.model_fields_set or self.compat == "none"
        return str(getattr(self, key)) if given else canals


class CanalMessageSettings(CanalValueSettings):
    """[message] format = "canal": Canal's flat JSON, which is the default."""

    old: Literal["changed", "uniform"] = Field(
        default="changed",
        description="In `old` of an UPDATE each row has the columns that changed in it, or all rows of a message have "
        "those that changed in any of them, as Flink's canal-json wants it.",
    )
    key: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        description='The columns of a record key, such as ["id"], or ["$pk$"] for the primary key of each table, so '
        "that topics can be compacted. A message has one row then, and a tombstone follows a DELETE and a changed key.",
    )

    @model_validator(mode="after")
    def _check_key(self) -> Self:
        if self.key and self.rows_per_message > 1:
            raise ValueError("rows_per_message has no meaning with a key: a message has one row")
        return self


class CanalEntrySettings(CanalValueSettings):
    """[message] format = "canal-protobuf": Canal's protobuf messages, as its clients and flatMessage = false have
    them."""

    format: str = Field(default="canal-protobuf", description="The format.")
    compat: Literal["none", "canal"] = Field(
        default="canal",
        description='canal: enum = "index" and binary = "latin1" unless given, times in whole seconds.',
    )
