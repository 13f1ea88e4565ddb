"""RabbitMQ as a sink, by its section [sink] type = "rabbitmq"."""

from __future__ import annotations

from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.ports.sink import Sink, SinkAdapter, SinkUse


class RabbitMqAdapter(SinkAdapter):
    section = RabbitMqSinkSettings

    def sink(self, settings: RabbitMqSinkSettings, use: SinkUse) -> Sink:
        from headrace.adapters.rabbitmq.sink import RabbitMqSink

        return RabbitMqSink(settings, use.lease, use.parking, use.routing)
