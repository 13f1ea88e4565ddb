"""A look at Kafka beside the query: the topics' ids and ends, and the oldest message that waits.

It uses the clients in Spark's JVM. One object belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Rows
from headrace_documents.messages import read
from headrace_spark.settings import KafkaSettings
from headrace_spark.source.kafka import admin_client, client_properties

Partition = tuple[str, int]
_SAMPLE = 100
"""Messages that the mean size is made of."""
_FETCH = 1 << 20
"""Bytes of an answer, where one message is not larger."""
_MAX_VALUE = 1 << 20
"""Bytes of a message that is read for its time; of a larger one Kafka's own time is taken."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The topics at one moment. `ids` are empty texts where a broker is too old to have any."""

    ids: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)


class KafkaLook:
    """Asks Kafka. Every answer has the limit `connect_timeout`; without one the methods raise what Java raises."""

    def __init__(self, settings: KafkaSettings, spark: SparkSession) -> None:
        self._settings, self._spark = settings, spark
        self._jvm: Any = spark.sparkContext._jvm
        self._admin: Any = None
        self._consumer: Any = None

    def look(self) -> Seen:
        """Ids, beginnings and ends of the topics in the configuration."""
        if self._admin is None:
            self._admin = admin_client(self._settings, self._spark)
        jvm, kafka = self._jvm, self._jvm.org.apache.kafka
        found = self._wait(self._admin.describeTopics(_list(jvm, self._settings.topics)).allTopicNames())
        ids: dict[str, str] = {}
        partitions: list[Partition] = []
        for topic, described in found.items():
            identity = str(described.topicId().toString())
            ids[topic] = "" if identity == str(kafka.common.Uuid.ZERO_UUID.toString()) else identity
            partitions += [(topic, int(one.partition())) for one in described.partitions()]
        specs = kafka.clients.admin.OffsetSpec
        return Seen(
            {topic: identity for topic, identity in ids.items() if identity},
            self._offsets(partitions, specs.earliest()),
            self._offsets(partitions, specs.latest()),
        )

    def _offsets(self, partitions: Iterable[Partition], spec: Any) -> dict[Partition, int]:
        jvm, kafka = self._jvm, self._jvm.org.apache.kafka
        wanted = jvm.java.util.HashMap()
        for topic, partition in partitions:
            wanted.put(kafka.common.TopicPartition(topic, partition), spec)
        # The end for a reader of committed messages is before the transactions that are open.
        options = kafka.clients.admin.ListOffsetsOptions(kafka.common.IsolationLevel.READ_COMMITTED)
        found = self._wait(self._admin.listOffsets(wanted, options).all())
        return {(str(key.topic()), int(key.partition())): int(found[key].offset()) for key in found}

    def _wait(self, future: Any) -> Any:
        seconds = int(self._settings.connect_timeout) + 5
        return future.get(seconds, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    def first(self, partition: Partition, offset: int) -> tuple[int, int, int]:
        """The commit time, in milliseconds, of the first message from `offset` on, 0 where there is none; and how many
        messages behind it have how many bytes together."""
        if self._consumer is None:
            properties = client_properties(self._settings, self._spark)
            kind = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
            for name, value in {
                "key.deserializer": kind,
                "value.deserializer": kind,
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "max.poll.records": str(_SAMPLE),
                "fetch.max.bytes": str(_FETCH),
                "max.partition.fetch.bytes": str(_FETCH),
            }.items():
                properties.setProperty(name, value)
            self._consumer = self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
        jvm = self._jvm
        place = jvm.org.apache.kafka.common.TopicPartition(*partition)
        self._consumer.assign(_list(jvm, [place]))
        self._consumer.seek(place, offset)
        records = list(_each(self._consumer.poll(jvm.java.time.Duration.ofSeconds(2))))
        if not records:
            return 0, 0, 0
        sizes = [max(0, int(record.serializedValueSize())) for record in records]
        return _committed(records[0], sizes[0]), len(sizes), sum(sizes)

    def close(self) -> None:
        """Closes the clients; the next look opens them again."""
        limit = self._jvm.java.time.Duration.ofSeconds(2)
        for client in (self._admin, self._consumer):
            if client is not None:
                client.close(limit)
        self._admin = self._consumer = None


def _committed(record: Any, size: int) -> int:
    if size <= _MAX_VALUE:
        try:
            value, key = record.value(), record.key()
            headers = {str(one.key()): bytes(one.value() or b"") for one in _each(record.headers())}
            message = read(bytes(value) if value is not None else None, bytes(key) if key else None, headers)
            if isinstance(message, Rows) and message.committed_ms:
                return message.committed_ms
        except MessageError:
            pass
    return int(record.timestamp())


def _each(iterable: Any) -> Iterator[Any]:
    """Goes through an Iterable of Java's that is no collection."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _list(jvm: Any, values: Sequence[Any]) -> Any:
    made = jvm.java.util.ArrayList()
    for value in values:
        made.add(value)
    return made
