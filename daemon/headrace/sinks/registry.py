"""The sinks by their type; a new one is a file and a line here."""

from __future__ import annotations

from headrace.lease import Lease
from headrace.settings import (
    JsonlSinkSettings,
    KafkaSinkSettings,
    RabbitMqSinkSettings,
    RocketMqSinkSettings,
    SinkSettings,
)
from headrace.sinks.base import Desk, Sink
from headrace.sinks.jsonl import JsonlSink
from headrace.sinks.jsonl_rotated import Rotation
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.null import NullSink
from headrace.sinks.plan import Plan
from headrace.sinks.rabbitmq import RabbitMqSink
from headrace.sinks.rocketmq import RocketMqSink


def make_sink(settings: SinkSettings, lease: Lease, desk: Desk | None = None, plan: Plan | None = None) -> Sink:
    """A new sink, not started. `desk`: where it may set messages aside; `plan`: what the destination's other sections
    say."""
    if isinstance(settings, KafkaSinkSettings):
        return KafkaSink(settings, lease, desk, plan)
    if isinstance(settings, RabbitMqSinkSettings):
        return RabbitMqSink(settings, lease, desk)
    if isinstance(settings, RocketMqSinkSettings):
        return RocketMqSink(settings, lease, desk)
    if isinstance(settings, JsonlSinkSettings):
        rotation = Rotation(settings.rotate_bytes, settings.rotate_after, settings.keep_files, settings.compression)
        return JsonlSink(settings.path, lease, rotation)
    return NullSink(lease)
