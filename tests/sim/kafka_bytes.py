"""Prints a digest of all bytes that a cluster answers to a fixed conversation; a test runs it under two hash seeds."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from random import Random
from typing import Any

from aiokafka.protocol.admin import CreateTopicsRequest_v3, DescribeConfigsRequest_v2
from aiokafka.protocol.api import RequestStruct
from aiokafka.protocol.fetch import FetchRequest_v11
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.produce import ProduceRequest_v7
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest_v0, EndTxnRequest_v0, InitProducerIdRequest_v0

from sim.kafka.cluster import Cluster
from sim.kafka.settings import ClusterSettings
from tests.sim.kafka_raw import batch


class Memory(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self, digest: Any) -> None:
        super().__init__()
        self.digest = digest

    def write(self, data: Any) -> None:
        self.digest.update(data)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def frame(request: RequestStruct) -> bytes:
    message = request.build_request_header(1, "client").encode() + request.encode()
    return struct.pack(">i", len(message)) + message


async def converse() -> str:
    digest = hashlib.sha256()
    settings = ClusterSettings(marker_time=0, session_timeout=0, rejoin_time=0)
    cluster = Cluster(Random(7), lambda: 1_700_000_000_000_000, brokers=3, settings=settings)
    cluster.create_topic("__transaction_state", 4)
    for name in ("b", "a", "c"):
        cluster.create_topic(name, 3)
    connections = {number: broker.protocol() for number, broker in cluster.brokers.items()}
    for connection in connections.values():
        connection.connection_made(Memory(digest))

    def send(broker: int, request: RequestStruct) -> None:
        connections[broker].data_received(frame(request))

    coordinator = cluster.coordinators.of("t")
    send(coordinator, InitProducerIdRequest_v0("t", 60_000))
    for sequence in range(20):
        topics = [(name, [0, 1, 2]) for name in ("a", "b")]
        send(coordinator, AddPartitionsToTxnRequest_v0("t", 0, 0, topics))
        for name, numbers in topics:
            for number in numbers:
                data = batch(b"%d" % sequence, producer=(0, 0), sequence=sequence, transactional=True)
                leader = cluster.partition(name, number).leader
                send(leader, ProduceRequest_v7("t", -1, 1000, [(name, [(number, data)])]))
        send(coordinator, EndTxnRequest_v0("t", 0, 0, bool(sequence % 3)))
        await asyncio.sleep(0.001)
        if sequence == 10:
            other = coordinator % 3 + 1
            cluster.brokers[other].stop()
            cluster.brokers[other].start()
            await asyncio.sleep(0.01)
            connections[other] = cluster.brokers[other].protocol()
            connections[other].connection_made(Memory(digest))
    for number in connections:
        send(number, MetadataRequest_v5(None, True))
        send(number, CreateTopicsRequest_v3([("new", 2, 3, [], [])], 1000, True))
        send(number, DescribeConfigsRequest_v2([(2, "a", None)], False))
        wanted = [(name, [(one, -1, 0, -1, 1 << 20) for one in range(3)]) for name in ("a", "b", "c")]
        send(number, FetchRequest_v11(-1, 0, 1, 1 << 20, 1, 0, -1, wanted, [], ""))
    return digest.hexdigest()


if __name__ == "__main__":
    print(asyncio.run(converse()))
