"""The message formats by name; a new one is a file and a line here."""

from __future__ import annotations

from headrace.formats.canal.format import CanalFormat, CompatFormat
from headrace.formats.debezium.format import DebeziumFormat
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.settings.destination import DestinationSettings


def make_format(settings: DestinationSettings) -> ValueFormat | KeyedFormat:
    """A new format, as the destination's [message] says."""
    message = settings.message
    if message.format == "debezium":
        return DebeziumFormat(message.debezium.model_copy(update={"name": message.debezium.name or settings.name}))
    canal = CompatFormat if message.compat == "canal" else CanalFormat
    return canal(message.binary_text, message.enum_index)
