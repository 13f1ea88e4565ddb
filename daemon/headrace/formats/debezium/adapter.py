"""Debezium's format, by the section [message] format = "debezium"."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.formats.debezium.settings import DebeziumMessageSettings
from headrace.ports.format import FormatAdapter, KeyedFormat
from headrace.ports.replay import MessageReader


class DebeziumAdapter(FormatAdapter):
    section = DebeziumMessageSettings

    def format(self, settings: DebeziumMessageSettings, destination: str) -> KeyedFormat:
        from headrace.formats.debezium.format import DebeziumFormat

        own = settings.debezium
        return DebeziumFormat(own.model_copy(update={"name": own.name or destination}))

    def reader(self, schema: str, table: str, keys: Sequence[str]) -> MessageReader:
        from headrace.formats.debezium.reading import DebeziumReader

        return DebeziumReader(schema, table, keys)
