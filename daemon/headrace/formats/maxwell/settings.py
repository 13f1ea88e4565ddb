"""The section [message] with format = "maxwell"."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from headrace.settings.adapters import FormatCapabilities, MessageSettings


class MaxwellMessageSettings(MessageSettings):
    """[message] format = "maxwell": Maxwell's JSON. A message has one row."""

    fields: tuple[Literal["position", "gtid", "server_id", "thread_id", "primary_key", "primary_key_columns"], ...] = (
        Field(
            default=(),
            description="Fields in addition to those that a message always has; in Maxwell output_binlog_position, "
            "output_gtid_position, output_server_id, output_thread_id, output_primary_keys and "
            "output_primary_key_columns.",
        )
    )

    @field_validator("rows_per_message")
    @classmethod
    def _check_rows(cls, value: int) -> int:
        if value > 1:
            raise ValueError('has no meaning with format = "maxwell": a message has one row')
        return value

    @property
    def capabilities(self) -> FormatCapabilities:
        return FormatCapabilities(marks=False)
