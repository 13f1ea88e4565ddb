"""The sinks by their type; a new one is a file and a line here."""

from __future__ import annotations

from headrace.adapters.jsonl.rotation import Rotation
from headrace.adapters.jsonl.sink import JsonlSink
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.sink import KafkaSink
from headrace.adapters.null.sink import NullSink
from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.adapters.rabbitmq.sink import RabbitMqSink
from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
from headrace.adapters.rocketmq.sink import RocketMqSink
from headrace.lease import Lease
from headrace.ports.sink import Desk, Sink
from headrace.ports.sink_plan import Plan
from headrace.settings.sinks import JsonlSinkSettings, SinkSettings


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
