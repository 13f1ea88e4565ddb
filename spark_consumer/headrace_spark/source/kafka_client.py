"""Kafka for the query's checks and for commands, by the Kafka client in Spark's JVM: topics, records, rights.

The options are those of the query itself, [kafka.options], so results apply there too."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from headrace_documents.errors import MessageError, UnreachableError
from headrace_documents.formats.changes import Rows
from headrace_documents.messages import read
from headrace_spark.settings import KafkaSettings
from headrace_spark.source.kafka import DEAD_LETTER_MAX_BYTES, client_options, java_reason

log = structlog.get_logger(__name__)
_CLOSE_SECONDS = 5
_SILENCE_SECONDS = 30.0
"""Without a record from a partition that has some for this long, the broker counts as unavailable."""
_FETCH = 1 << 20
"""Bytes of an answer, if no message is larger."""
_MAX_VALUE = 1 << 20
"""Bytes of a message that is read for its time; for a larger one Kafka's own time is used."""
_BYTES = "org.apache.kafka.common.serialization.ByteArray"
_WRAPPING = re.compile(r"^(?:java\.util\.concurrent\.ExecutionException: )?(?:[a-z][\w$]*\.)*([A-Z]\w*)(?:: )?")


Partition = tuple[str, int]


class KafkaError(UnreachableError):
    """Kafka refuses a request, or does not answer it in time."""


class Read(NamedTuple):
    """A record in its partition; `timestamp` in milliseconds since 1970."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Sent(NamedTuple):
    """A record to publish."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Range(NamedTuple):
    """The offsets of a partition: of its first record, and after its last."""

    first: int
    end: int


class Topic(NamedTuple):
    """A topic. `rights` are the operations that the account may do on it, in capitals; None if the broker does not
    report them."""

    partitions: list[int]
    rights: frozenset[str] | None


class Seen(NamedTuple):
    """The topics of the configuration at one moment. A broker that is too old has no `ids`."""

    ids: Mapping[str, str]
    begins: Mapping[Partition, int]
    ends: Mapping[Partition, int]


class KafkaClient:
    """A client for one thread. Its connections are opened when needed; as a context they end with the block. Each
    answer has the limit `connect_timeout`. All methods raise KafkaError."""

    def __init__(self, jvm: Any, settings: KafkaSettings) -> None:
        self._jvm, self._settings = jvm, settings
        self._seconds = int(settings.connect_timeout) + 5
        self._open = contextlib.ExitStack()
        self._made: dict[str, Any] = {}

    def __enter__(self) -> KafkaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # -- topics -------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic | None:
        """Returns a topic; None if it does not exist."""
        options = self._jvm.org.apache.kafka.clients.admin.DescribeTopicsOptions().includeAuthorizedOperations(True)
        try:
            found = self._wait(self._admin().describeTopics([name], options).topicNameValues().get(name))
        except KafkaError as error:
            if "UnknownTopicOrPartition" in str(error):
                return None
            raise
        rights = found.authorizedOperations()
        return Topic(
            sorted(one.partition() for one in found.partitions()),
            frozenset(str(one.name()) for one in rights) if rights is not None else None,
        )

    def topics(self) -> Seen:
        """Returns ids, beginnings and ends of the topics in the configuration. The end is before open transactions."""
        found = self._wait(self._admin().describeTopics(list(self._settings.topics)).allTopicNames())
        none = str(self._jvm.org.apache.kafka.common.Uuid.ZERO_UUID.toString())
        ids: dict[str, str] = {}
        ranges: dict[Partition, Range] = {}
        for topic, described in found.items():
            ids[topic] = str(described.topicId().toString())
            whole = self.ranges(topic, [int(one.partition()) for one in described.partitions()])
            ranges |= {(topic, number): one for number, one in whole.items()}
        return Seen(
            {topic: one for topic, one in ids.items() if one != none},
            {place: one.first for place, one in ranges.items()},
            {place: one.end for place, one in ranges.items()},
        )

    def names(self) -> set[str]:
        """Returns the names of all topics that the account may see."""
        return set(self._wait(self._admin().listTopics().names()))

    def topic_config(self, name: str, key: str) -> str:
        """Returns a setting of a topic."""
        resource = self._jvm.org.apache.kafka.common.config.ConfigResource(
            self._jvm.org.apache.kafka.common.config.ConfigResource.Type.TOPIC, name
        )
        return str(self._wait(self._admin().describeConfigs([resource]).all()).get(resource).get(key).value())

    def create(self, name: str, *, only_try: bool = False) -> None:
        """Creates a topic for dead letters, or with `only_try` only asks whether that is possible."""
        optional = self._jvm.java.util.Optional
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, optional.of(1), optional.empty())
        topic.configs({"max.message.bytes": str(DEAD_LETTER_MAX_BYTES)})
        options = self._jvm.org.apache.kafka.clients.admin.CreateTopicsOptions().validateOnly(only_try)
        self._wait(self._admin().createTopics([topic], options).all())

    def delete_before(self, topic: str, floors: Mapping[int, int]) -> None:
        """Deletes the records of each partition before an offset."""
        wanted = {self._place(topic, partition): self._before(offset) for partition, offset in floors.items()}
        self._wait(self._admin().deleteRecords(wanted).all())

    def _before(self, offset: int) -> Any:
        # By reflection: py4j mistakes the static method for the method of an object that has the same name.
        java = self._jvm.java.lang
        loader = java.Thread.currentThread().getContextClassLoader()
        types = java.reflect.Array.newInstance(java.Class.forName("java.lang.Class"), 1)
        types[0] = java.Long.TYPE
        values = java.reflect.Array.newInstance(java.Class.forName("java.lang.Object"), 1)
        values[0] = java.Long.valueOf(offset)
        made = loader.loadClass("org.apache.kafka.clients.admin.RecordsToDelete").getMethod("beforeOffset", types)
        return made.invoke(None, values)

    # -- records ------------------------------------------------------------------------------------------------------

    def ranges(self, topic: str, partitions: Sequence[int]) -> dict[int, Range]:
        """Returns the present ranges of the partitions."""
        places = [self._place(topic, partition) for partition in partitions]
        limit = self._jvm.java.time.Duration.ofSeconds(self._seconds)
        with self._reported():
            first = self._consumer().beginningOffsets(places, limit)
            end = self._consumer().endOffsets(places, limit)
            return {one.partition(): Range(int(first.get(one)), int(end.get(one))) for one in places}

    def read(self, topic: str, partition: int, wanted: Range) -> Iterator[Read]:
        """Yields the records of a part of a partition, one after the other; keeps only those of one request."""
        if wanted.first >= wanted.end:
            return
        consumer, place = self._consumer(), self._place(topic, partition)
        pause = self._jvm.java.time.Duration.ofMillis(500)
        with self._reported():
            consumer.assign([place])
            consumer.seek(place, wanted.first)
        last_seen = time.monotonic()
        while True:
            with self._reported():
                batch = consumer.poll(pause).records(place)
                # Markers of transactions have offsets too, so the position says more than the last record.
                position = consumer.position(place)
                size = len(batch)
            for number in range(size):
                with self._reported():
                    record = _read(batch[number])
                if record.offset >= wanted.end:
                    return
                yield record
            if position >= wanted.end:
                return
            if size:
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > _SILENCE_SECONDS:
                raise KafkaError(
                    f"Kafka gives nothing of topic {topic}, partition {partition}, from offset {position} on for "
                    f"{_SILENCE_SECONDS:g} s; are its brokers well?"
                )

    def first(self, partition: Partition, offset: int) -> tuple[int, int, int]:
        """Returns the commit time, in milliseconds, of the first message from `offset` on, 0 if there is none; and how
        many messages after it have how many bytes together."""
        consumer, place = self._consumer(), self._place(*partition)
        with self._reported():
            consumer.assign([place])
            consumer.seek(place, offset)
            records = list(consumer.poll(self._jvm.java.time.Duration.ofSeconds(2)).records(place))
            if not records:
                return 0, 0, 0
            sizes = [max(0, int(record.serializedValueSize())) for record in records]
            return _committed(records[0], sizes[0]), len(sizes), sum(sizes)

    def publish(self, records: Sequence[Sent]) -> list[str]:
        """Publishes with acks=all, and returns when all are answered: for each record why it was refused, or ""."""
        producer = self._producer()
        answers: list[Any] = []
        for record in records:
            try:
                made = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(
                    record.topic, record.partition, None, record.key, record.value, self._jvm.java.util.ArrayList()
                )
                for name, value in record.headers:
                    made.headers().add(name, value)
                answers.append(producer.send(made))
            except Exception as error:
                answers.append(kafka_reason(error))
        with self._reported():
            producer.flush()
        return [answer if isinstance(answer, str) else self._refusal(answer) for answer in answers]

    def _refusal(self, answer: Any) -> str:
        try:
            self._wait(answer)
        except KafkaError as error:
            return str(error)
        return ""

    # -- clients ------------------------------------------------------------------------------------------------------

    def _place(self, topic: str, partition: int) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(topic, partition)

    def _admin(self) -> Any:
        return self._client("admin", self._jvm.org.apache.kafka.clients.admin.AdminClient.create, {})

    def _consumer(self) -> Any:
        return self._client(
            "consumer",
            self._jvm.org.apache.kafka.clients.consumer.KafkaConsumer,
            {
                "key.deserializer": f"{_BYTES}Deserializer",
                "value.deserializer": f"{_BYTES}Deserializer",
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": "false",
                "fetch.max.bytes": str(_FETCH),
                "max.partition.fetch.bytes": str(_FETCH),
                "max.poll.records": "100",
                # The broker delays what follows a waiting fetch, such as the end of the connection.
                "fetch.max.wait.ms": "50",
            },
        )

    def _producer(self) -> Any:
        return self._client(
            "producer",
            self._jvm.org.apache.kafka.clients.producer.KafkaProducer,
            {
                "key.serializer": f"{_BYTES}Serializer",
                "value.serializer": f"{_BYTES}Serializer",
                "acks": "all",
                "max.block.ms": "30000",
                "delivery.timeout.ms": str(60_000 + int(self._settings.connect_timeout * 1000)),
                "linger.ms": "5",
                "max.request.size": str(DEAD_LETTER_MAX_BYTES),
                "buffer.memory": str(2 * DEAD_LETTER_MAX_BYTES),
            },
        )

    def _client(self, name: str, make: Any, ours: dict[str, str]) -> Any:
        if name in self._made:
            return self._made[name]
        milliseconds = str(int(self._settings.connect_timeout * 1000))
        properties = self._jvm.java.util.Properties()
        given = {one.removeprefix("kafka."): value for one, value in client_options(self._settings).items()}
        for one, value in {
            "request.timeout.ms": milliseconds,
            "default.api.timeout.ms": milliseconds,
            **given,
            **ours,
        }.items():
            properties.setProperty(one, value)
        try:
            client = self._made[name] = make(properties)
        except Exception as error:
            raise KafkaError(f"the Kafka client does not start: {kafka_reason(error)}; see [kafka.options]") from None
        self._open.callback(self._close, client)
        return client

    def _close(self, client: Any) -> None:
        # The process ends anyway; an unavailable broker must not delay it.
        with contextlib.suppress(Exception):
            client.close(self._jvm.java.time.Duration.ofSeconds(_CLOSE_SECONDS))

    def _wait(self, future: Any) -> Any:
        with self._reported():
            return future.get(self._seconds, self._jvm.java.util.concurrent.TimeUnit.SECONDS)

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise KafkaError(kafka_reason(error)) from None


def _read(record: Any) -> Read:
    key, value = record.key(), record.value()
    return Read(
        record.partition(),
        record.offset(),
        record.timestamp(),
        bytes(key) if key is not None else None,
        bytes(value) if value is not None else None,
        [(one.key(), _bytes(one.value())) for one in record.headers().toArray()],
    )


def _bytes(value: Any) -> bytes | None:
    return bytes(value) if value is not None else None


def kafka_reason(error: BaseException) -> str:
    """Returns the text of a Java exception: its class without the package, and its message."""
    text = java_reason(error)
    found = _WRAPPING.match(text)
    return f"{found[1]}: {text[found.end() :]}".rstrip(": ") if found else text


def _committed(record: Any, size: int) -> int:
    if size <= _MAX_VALUE:
        found = _read(record)
        with contextlib.suppress(MessageError):
            message = read(found.value, found.key, dict(found.headers))
            if isinstance(message, Rows) and message.committed_ms:
                return message.committed_ms
    return int(record.timestamp())


def prepare_topics(client: KafkaClient, settings: KafkaSettings, stop: threading.Event) -> None:
    """Waits until the topics exist and creates the one for dead letters. Raises UnreachableError if Kafka does not
    answer or topics are still missing after `topic_timeout`."""
    deadline = time.monotonic() + settings.topic_timeout
    reported = False
    while not stop.is_set():
        try:
            names = client.names()
        except KafkaError as error:
            raise KafkaError(f"Kafka at {', '.join(settings.bootstrap_servers)} does not answer: {error}") from None
        if settings.dead_letter_topic not in names:
            _create(client, settings.dead_letter_topic)
        missing = sorted(set(settings.topics) - names)
        if not missing:
            return
        if time.monotonic() >= deadline:
            raise UnreachableError(
                f"Kafka has no topic {', '.join(missing)} after {settings.topic_timeout:g} s: "
                "create it, or let the daemon publish to it first, or correct `topics` in [kafka]"
            )
        if not reported:
            log.info("waiting for topics", missing=missing, seconds=settings.topic_timeout)
            reported = True
        stop.wait(1.0)


def _create(client: KafkaClient, name: str) -> None:
    try:
        client.create(name)
        log.info("topic for dead letters created", topic=name)
    except KafkaError as error:
        if "TopicExistsException" not in str(error):
            raise UnreachableError(f"can't create the topic for dead letters {name}: {error}") from None
