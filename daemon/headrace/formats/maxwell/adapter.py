"""Maxwell's format, by the section [message] format = "maxwell"."""

from __future__ import annotations

from headrace.formats.maxwell.settings import MaxwellMessageSettings
from headrace.ports.format import FormatAdapter, KeyedFormat


class MaxwellAdapter(FormatAdapter):
    section = MaxwellMessageSettings

    def format(self, settings: MaxwellMessageSettings, destination: str) -> KeyedFormat:
        from headrace.formats.maxwell.format import MaxwellFormat

        return MaxwellFormat(settings.fields)
