"""A format in one file: what a new one needs besides a line of registration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.model import RowsChange, SchemaChange, TransactionMark
from headrace.ports.format import FormatAdapter, Messages, ValueFormat
from headrace.settings.adapters import FormatCapabilities, MessageSettings


class ToyMessageSettings(MessageSettings):
    """[message] format = "toy": the operation, and the rows as Python prints them."""

    format: Literal["toy"] = Field(description="The format.")
    loud: bool = Field(default=False, description="In capitals.")

    @property
    def capabilities(self) -> FormatCapabilities:
        return FormatCapabilities()


class ToyFormat(ValueFormat):
    def __init__(self, loud: bool) -> None:
        self._loud = loud

    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        text = f"{change.operation} {change.schema.name} {change.rows}"
        return (text.upper() if self._loud else text).encode()

    def encode_each(self, change: RowsChange, now_ms: int) -> list[bytes]:
        return [self.encode(part, now_ms) for part in change.parts(1)]

    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        return []

    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        return []


class ToyFormatAdapter(FormatAdapter):
    section = ToyMessageSettings

    def format(self, settings: ToyMessageSettings, destination: str) -> ToyFormat:
        return ToyFormat(settings.loud)
