"""Kafka as a sink, at least once or exactly once, by its section [sink] type = "kafka"."""

from __future__ import annotations

from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.lease import Lease
from headrace.ports.parking import ParkingStore
from headrace.ports.replay import Replay
from headrace.ports.sink import Sink, SinkAdapter, SinkUse
from headrace.ports.state import StateStore


class KafkaAdapter(SinkAdapter):
    section = KafkaSinkSettings

    def sink(self, settings: KafkaSinkSettings, use: SinkUse) -> Sink:
        """Returns the sink. With exactly-once delivery it has a transactional producer, which its stores write through
        too."""
        if not settings.capabilities.exactly_once:
            return self.probe(settings, use)
        from headrace.adapters.kafka.exactly_once import ExactlyOnceKafkaSink
        from headrace.adapters.kafka.parking import KafkaParkingStore
        from headrace.adapters.kafka.state import KafkaStore
        from headrace.adapters.kafka.transactor import Transactor

        transactor = Transactor(settings, use.destination, use.lease, use.ends)
        parked = use.parked if isinstance(use.parked, KafkaParkingStore) else None
        sink = ExactlyOnceKafkaSink(settings, transactor, use.parking, use.routing, parked)
        if parked is not None:
            parked.writer = sink.write
        sink.store = KafkaStore(settings, use.destination, transactor)
        return sink

    def probe(self, settings: KafkaSinkSettings, use: SinkUse) -> Sink:
        """Returns a plain sink, because a transactional producer would fence the active one."""
        from headrace.adapters.kafka.sink import KafkaSink

        exactly_once = settings.capabilities.exactly_once
        transactional_id = settings.transactional_id_of(use.destination) if exactly_once else ""
        return KafkaSink(settings, use.lease, use.parking, use.routing, use.ends, transactional_id=transactional_id)

    def state_store(self, settings: KafkaSinkSettings, destination: str, lease: Lease | None = None) -> StateStore:
        from headrace.adapters.kafka.state import KafkaStore

        return KafkaStore(settings, destination, lease=lease)

    def parking_store(self, settings: KafkaSinkSettings, destination: str) -> ParkingStore:
        from headrace.adapters.kafka.parking import KafkaParkingStore

        return KafkaParkingStore(settings, destination, settings.parked_topic)

    def replay(self, settings: KafkaSinkSettings, topic: str, since_ms: int = 0) -> Replay:
        from headrace.adapters.kafka.replay import KafkaReplay

        return KafkaReplay(settings, topic, since_ms)
