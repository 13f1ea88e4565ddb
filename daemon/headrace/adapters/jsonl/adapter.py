"""Lines as a sink, by the section [sink] type = "jsonl"."""

from __future__ import annotations

from headrace.adapters.jsonl.settings import JsonlSinkSettings
from headrace.ports.replay import Replay
from headrace.ports.sink import Sink, SinkAdapter, SinkUse


class JsonlAdapter(SinkAdapter):
    section = JsonlSinkSettings

    def sink(self, settings: JsonlSinkSettings, use: SinkUse) -> Sink:
        from headrace.adapters.jsonl.sink import JsonlSink

        return JsonlSink(settings.path, use.lease, settings.rotate_bytes, settings.keep_files)

    def replay(self, settings: JsonlSinkSettings, topic: str, since_ms: int = 0) -> Replay:
        if settings.path == "-":
            return super().replay(settings, topic, since_ms)
        from headrace.adapters.jsonl.replay import JsonlReplay

        return JsonlReplay(settings)
