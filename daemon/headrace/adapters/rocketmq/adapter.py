"""RocketMQ 5 as a sink, by its section [sink] type = "rocketmq"."""

from __future__ import annotations

from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
from headrace.ports.sink import Sink, SinkAdapter, SinkUse


class RocketMqAdapter(SinkAdapter):
    section = RocketMqSinkSettings

    def sink(self, settings: RocketMqSinkSettings, use: SinkUse) -> Sink:
        from headrace.adapters.rocketmq.sink import RocketMqSink

        return RocketMqSink(settings, use.lease, use.parking)
