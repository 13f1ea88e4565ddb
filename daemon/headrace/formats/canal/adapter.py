"""Canal's formats, by the section [message] format = "canal" or "canal-protobuf"."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.formats.canal.settings import CanalEntrySettings, CanalMessageSettings
from headrace.ports.format import FormatAdapter, KeyedFormat, ValueFormat
from headrace.ports.replay import MessageReader


class CanalAdapter(FormatAdapter):
    section = CanalMessageSettings

    def format(self, settings: CanalMessageSettings, destination: str) -> ValueFormat | KeyedFormat:
        from headrace.formats.canal.format import CanalFormat, CompatFormat

        made = CompatFormat if settings.compat == "canal" else CanalFormat
        plain = made(settings.binary_text, settings.enum_index, uniform=settings.old == "uniform")
        if not settings.key:
            return plain
        from headrace.formats.canal.keyed import KeyedCanalFormat

        return KeyedCanalFormat(plain, settings.key)

    def reader(self, schema: str, table: str, keys: Sequence[str]) -> MessageReader:
        from headrace.formats.canal.reading import CanalReader

        return CanalReader(schema, table, keys)


class CanalEntryAdapter(FormatAdapter):
    section = CanalEntrySettings

    def format(self, settings: CanalEntrySettings, destination: str) -> ValueFormat:
        from headrace.formats.canal.entries import EntryFormat

        return EntryFormat(settings.binary_text, settings.enum_index, whole_seconds=settings.compat == "canal")
