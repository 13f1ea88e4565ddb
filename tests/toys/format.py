"""A format in one file: what a new one needs besides a line of registration."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import Field

from headrace.model import RowsChange, SchemaChange, TableSchema, TransactionMark
from headrace.ports.format import FormatAdapter, Messages, ValueFormat
from headrace.settings.adapters import FormatCapabilities, MessageSettings
from headrace_common.values import parse_host_port


class ToyMessageSettings(MessageSettings):
    """[message] format = "toy": the operation, and the rows as Python prints them."""

    format: Literal["toy"] = Field(description="The format.")
    loud: bool = Field(default=False, description="In capitals.")
    registry: str = Field(default="", description="host:port of a server that has a number for each table schema.")

    @property
    def capabilities(self) -> FormatCapabilities:
        return FormatCapabilities()


class ToyFormat(ValueFormat):
    def __init__(self, loud: bool, registry: str) -> None:
        self._loud, self._registry = loud, registry
        self._numbers: dict[TableSchema, int] = {}

    async def prepare(self, schema: TableSchema) -> None:
        if self._registry:
            host, port = parse_host_port(self._registry)
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"{schema.name} {' '.join(column.name for column in schema.columns)}\n".encode())
                self._numbers[schema] = int(await reader.readuntil(b"\n"))
            finally:
                writer.close()

    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        text = f"{change.operation} {change.schema.name} {change.rows}"
        if self._registry:
            text = f"{self._numbers[change.schema]} {text}"
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
        return ToyFormat(settings.loud, settings.registry)
