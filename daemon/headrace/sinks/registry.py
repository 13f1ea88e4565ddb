"""The sinks by their type; a new one is a file and a line here."""

from __future__ import annotations

from headrace.lease import Lease
from headrace.settings import JsonlSinkSettings, KafkaSinkSettings, SinkSettings
from headrace.sinks.base import Sink
from headrace.sinks.jsonl import JsonlSink
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.null import NullSink


def make_sink(settings: SinkSettings, lease: Lease) -> Sink:
    """A new sink, not started."""
    if isinstance(settings, KafkaSinkSettings):
        return KafkaSink(settings, lease)
    if isinstance(settings, JsonlSinkSettings):
        return JsonlSink(settings.path, lease)
    return NullSink(lease)
