"""The message formats by name; a new one is a file and a line here."""

from __future__ import annotations

from headrace.formats.base import KeyedFormat, ValueFormat
from headrace.formats.canal import CanalFormat, CompatFormat
from headrace.formats.debezium import DebeziumFormat
from headrace.settings import DestinationSettings


def make_format(settings: DestinationSettings) -> ValueFormat | KeyedFormat:
    """A new format, as the destination's [message] says."""
    message = settings.message
    if message.format == "debezium":
        return DebeziumFormat(message.debezium.model_copy(update={"name": message.debezium.name or settings.name}))
    canal = CompatFormat if message.compat == "canal" else CanalFormat
    return canal(message.binary_text, message.enum_index)
