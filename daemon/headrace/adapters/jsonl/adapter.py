"""Lines as a sink, by the section [sink] type = "jsonl"."""

from __future__ import annotations

from headrace.adapters.jsonl.settings import JsonlSinkSettings
from headrace.ports.sink import Sink, SinkAdapter, SinkUse


class JsonlAdapter(SinkAdapter):
    section = JsonlSinkSettings

    def sink(self, settings: JsonlSinkSettings, use: SinkUse) -> Sink:
        from headrace.adapters.jsonl.rotation import Rotation
        from headrace.adapters.jsonl.sink import JsonlSink

        rotation = Rotation(settings.rotate_bytes, settings.rotate_after, settings.keep_files, settings.compression)
        return JsonlSink(settings.path, use.lease, rotation)
