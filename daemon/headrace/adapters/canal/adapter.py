"""A server for Canal's clients as a sink, by the section [sink] type = "canal"."""

from __future__ import annotations

from headrace.adapters.canal.settings import CanalSinkSettings
from headrace.ports.sink import Sink, SinkAdapter, SinkUse


class CanalSinkAdapter(SinkAdapter):
    section = CanalSinkSettings

    def sink(self, settings: CanalSinkSettings, use: SinkUse) -> Sink:
        from headrace.adapters.canal.sink import CanalSink

        return CanalSink(settings, use)
