"""Canal's format, by the section [message] format = "canal"."""

from __future__ import annotations

from headrace.formats.canal.settings import CanalMessageSettings
from headrace.ports.format import FormatAdapter, ValueFormat


class CanalAdapter(FormatAdapter):
    section = CanalMessageSettings

    def format(self, settings: CanalMessageSettings, destination: str) -> ValueFormat:
        from headrace.formats.canal.format import CanalFormat, CompatFormat

        made = CompatFormat if settings.compat == "canal" else CanalFormat
        return made(settings.binary_text, settings.enum_index)
