"""The topics of messages: checked once before the first message, created if configured, and their size limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from aiokafka import errors
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import KafkaError

from headrace import runtime
from headrace.adapters.kafka.aiokafka_internals import (
    create_topic,
    describe_topic,
    inspect_topic,
    read_setting,
)
from headrace.adapters.kafka.connection import describe
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.errors import SinkError, SinkRejected
from headrace.ports.finding import Finding, failed, warning, wrong

log = structlog.get_logger(__name__)

DEFAULT_MAX_MESSAGE = 1_048_588
"""Kafka's default of message.max.bytes."""
_FORBIDDEN = (errors.TopicAuthorizationFailedError, errors.InvalidTopicError)
_NEEDED = {"Write": 4, "Describe": 8}
"""Operations on a topic by their numbers in AclOperation."""
_APPEARS_WITHIN = 5.0
"""Seconds that a topic may take to appear after it was requested, at most half of request_timeout."""
_PAUSE = 0.1


class Topics:
    """What is known of the topics, for the life of one producer. `partitions` returns how many [route] needs."""

    def __init__(self, settings: KafkaSinkSettings, partitions: Callable[[str], int]) -> None:
        self._settings, self._partitions = settings, partitions
        self._limits: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def known(self, topic: str) -> bool:
        """Returns whether ensure() has found no problem."""
        return topic in self._limits

    def limit(self, topic: str) -> int:
        """Returns for a known topic the largest record batch that it allows, in bytes; 0: we may not read it."""
        return self._limits[topic]

    def count(self, topic: str) -> int:
        """Returns for a known topic how many partitions it had at the last check."""
        return self._counts[topic]

    async def ensure(self, client: Any, topic: str) -> None:
        """Checks the topic, and creates it if it is missing and configured to be created. `client` is aiokafka's.
        Raises SinkRejected if messages can't go there as [route] says, SinkError if the brokers do not answer."""
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                if not (count := await self._ask_count(client, topic)):
                    count = await self._wait_for(client, topic)
                if problem := self._too_few(topic, count):
                    raise problem
                self._counts[topic] = count
                self._limits[topic] = self._settings.max_request_size or await self._ask_limit(client, topic)
        except _FORBIDDEN as error:
            raise _forbidden(topic, error) from error
        except (KafkaError, OSError, TimeoutError) as error:
            what = f"Kafka at {self._servers} does not say whether there is a topic {topic} ({describe(error)})"
            raise SinkError(what) from error

    async def findings(self, client: Any, topics: Iterable[str]) -> list[Finding]:
        """Returns problems of the topics; creates none."""
        found: list[Finding] = []
        for topic in topics:
            try:
                async with asyncio.timeout(self._settings.request_timeout):
                    found += await self._findings(client, topic)
            except _FORBIDDEN as error:
                found.append(failed("sink", _forbidden(topic, error)))
            except (KafkaError, OSError, TimeoutError) as error:
                found.append(wrong("sink", f"the topic {topic} can't be read ({describe(error)})"))
        return found

    async def _findings(self, client: Any, topic: str) -> list[Finding]:
        facts = await inspect_topic(client, topic)
        if facts.error in _FORBIDDEN:
            raise facts.error(topic)
        if not facts.partitions:
            if self._settings.create_topics:
                return []
            broker = client.get_random_node()
            makes = await read_setting(
                client, ConfigResourceType.BROKER, str(broker), "auto.create.topics.enable", node=broker
            )
            return [failed("sink", self._missing(topic))] if makes == "false" else []
        found = []
        if few := self._too_few(topic, facts.partitions):
            found.append(failed("sink", few))
        may = facts.operations
        if may is not None and (lacking := [name for name, number in _NEEDED.items() if number not in may]):
            found.append(failed("sink", _forbidden(topic, None, lacking)))
        insync = await read_setting(client, ConfigResourceType.TOPIC, topic, "min.insync.replicas")
        if insync is not None:
            found += _durability(topic, facts.copies, int(insync))
        return found

    async def _ask_count(self, client: Any, topic: str, *, make: bool = False) -> int:
        """Returns its partitions; 0 if it does not exist. `make`: the brokers may create it, with their defaults."""
        error, partitions, _ = await describe_topic(client, topic, make=make)
        if error in _FORBIDDEN:
            raise error(topic)
        return partitions

    async def _wait_for(self, client: Any, topic: str) -> int:
        if self._settings.create_topics:
            await self._create(client, topic)
        deadline = runtime.monotonic() + min(_APPEARS_WITHIN, self._settings.request_timeout / 2)
        while not (count := await self._ask_count(client, topic, make=not self._settings.create_topics)):
            if runtime.monotonic() > deadline:
                raise self._unseen(topic) if self._settings.create_topics else self._missing(topic)
            await asyncio.sleep(_PAUSE)
        return count

    async def _create(self, client: Any, topic: str) -> None:
        partitions = self._partitions(topic)
        copies = self._settings.topic_replication or min(3, len(client.cluster.brokers()))
        while True:
            code, text = await create_topic(client, topic, partitions, copies, self._settings.request_timeout)
            error = errors.for_code(code)
            if error is not errors.NotControllerError:
                break
            await client.force_metadata_update()
            await asyncio.sleep(_PAUSE)
        if code and error is not errors.TopicAlreadyExistsError:
            raise SinkRejected(
                f"the topic {topic} can't be made ({error.__name__}: {text})",
                remedy="make it by hand, or correct [sink] topic_replication or our rights",
            )
        if not code:
            log.info("a topic was made", topic=topic, partitions=partitions, copies=copies)

    async def _ask_limit(self, client: Any, topic: str) -> int:
        text = await read_setting(client, ConfigResourceType.TOPIC, topic, "max.message.bytes")
        return int(text) if text and text.isdecimal() else 0

    def _missing(self, topic: str) -> SinkRejected:
        return SinkRejected(
            f"there is no topic {topic}, and the brokers make none by themselves",
            remedy=f"make it with {self._partitions(topic)} partitions, or set [sink] create_topics = true",
        )

    def _unseen(self, topic: str) -> SinkError:
        """Returns the error for a topic that exists, and that a broker which has just started does not show yet."""
        return SinkError(f"Kafka at {self._servers} has the topic {topic}, and does not show its partitions yet")

    @property
    def _servers(self) -> str:
        return ",".join(self._settings.bootstrap_servers)

    def _too_few(self, topic: str, count: int) -> SinkRejected | None:
        wanted = self._partitions(topic)
        if count >= wanted:
            return None
        return SinkRejected(
            f"the topic {topic} has {count} partitions, and [route] sends to {wanted}",
            remedy=f"add partitions (kafka-topics.sh --alter --topic {topic} --partitions {wanted}), "
            "or correct [route]",
        )


def _forbidden(topic: str, error: KafkaError | None, lacking: Iterable[str] = ()) -> SinkRejected:
    """Returns the error for missing rights. `lacking`: the operations that we may not do, if known."""
    if isinstance(error, errors.InvalidTopicError):
        return SinkRejected(f"Kafka does not take {topic} for the name of a topic", remedy="correct [route]")
    why = describe(error) if error is not None else f"{' and '.join(lacking)} is not allowed"
    return SinkRejected(
        f"Kafka does not let us use the topic {topic} ({why})",
        remedy=f"allow Describe and Write on it (kafka-acls.sh --add --allow-principal User:... --operation Describe "
        f"--operation Write --topic {topic})",
    )


def _durability(topic: str, copies: int, insync: int) -> list[Finding]:
    """Returns findings on whether a confirmed message is on more than one broker, and whether it can be confirmed at
    all."""
    if insync > copies:
        return [
            wrong(
                "sink",
                f"min.insync.replicas of the topic {topic} is {insync}, and it has {copies} "
                f"{'copies' if copies > 1 else 'copy'}: the brokers confirm no message",
                f"set it to {max(1, copies - 1)}, or give the topic more copies (kafka-reassign-partitions.sh)",
            )
        ]
    if insync == 1 and copies > 1:
        return [
            warning(
                "sink",
                f"min.insync.replicas of the topic {topic} is 1 with {copies} copies: a message that one broker has "
                "counts as confirmed while the others are away, and is lost with that broker",
                f"set min.insync.replicas of {topic} to {copies - 1}"
                if copies > 2
                else "give the topic three copies, and set min.insync.replicas to 2",
            )
        ]
    return []
