"""`headrace-spark dead-letters` with a real Kafka: letters as the consumer writes them, notes, and what is deleted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from headrace_spark.dead_letters.records import Header
from headrace_spark.transform.worker import Record, dead_letter
from tests.canal_messages import START, change, row

from .conftest import Done, Pipeline

pytestmark = pytest.mark.server

Command = Callable[..., Done]
UNASKED = "nobody can be asked: the input is no terminal; give --yes to do it unasked\nnothing was discarded\n"
WHY = "Elasticsearch refuses row 0: 400 document_parsing_exception: failed to parse field [sold]"


class Letters:
    """The topics of a pipeline: the one with messages has three partitions, that of dead letters as many as asked."""

    def __init__(self, pipeline: Pipeline, kafka: AIOKafkaProducer, command: Command) -> None:
        self.pipeline, self._kafka, self._command = pipeline, kafka, command
        self.dead = f"{pipeline.topic}.dead"
        self._partitions: dict[str, int] = {}

    async def make(self, dead_partitions: int = 1) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.pipeline.bootstrap)
        await admin.start()
        self._partitions = {self.pipeline.topic: 3, self.dead: dead_partitions}
        try:
            await admin.create_topics([NewTopic(name, count, 1) for name, count in self._partitions.items()])
        finally:
            await admin.close()

    async def add(
        self,
        value: bytes | None,
        reason: str = WHY,
        offset: int = 0,
        partition: int = 1,
        key: bytes | None = b"k",
        headers: list[Header] | None = None,
        dead_partition: int = 0,
    ) -> str:
        """Writes a letter as the consumer does; its id."""
        record = Record(key, value, self.pipeline.topic, partition, offset, headers)
        made = dead_letter(record, reason, 7)
        await self._kafka.send_and_wait(self.dead, made.value, made.key, dead_partition, headers=made.headers)
        return (dict(made.headers)["headrace-dead-id"] or b"").decode()

    async def records(self, topic: str) -> list[Any]:
        """All that is in a topic."""
        async with AIOKafkaConsumer(bootstrap_servers=self.pipeline.bootstrap) as consumer:
            places = [TopicPartition(topic, number) for number in range(self._partitions[topic])]
            consumer.assign(places)
            ends = await consumer.end_offsets(places)
            for place, first in (await consumer.beginning_offsets(places)).items():
                consumer.seek(place, first)
            found: list[Any] = []
            while [place for place in places if await consumer.position(place) < ends[place]]:
                batch = await consumer.getmany(timeout_ms=500)
                found += [record for group in batch.values() for record in group]
        return found

    def run(self, action: str, *words: object) -> Done:
        return self._command("dead-letters", action, "--config", self.pipeline.config, *words)

    def open(self, *words: object) -> list[dict[str, Any]]:
        done = self.run("list", "--json", *words)
        assert done.code == 0, done.err
        return [json.loads(text) for text in done.out.splitlines()]


@pytest.fixture
async def letters(pipeline: Pipeline, command: Command) -> AsyncIterator[Letters]:
    async with AIOKafkaProducer(
        bootstrap_servers=pipeline.bootstrap, acks="all", max_request_size=3_000_000
    ) as producer:
        yield Letters(pipeline, producer, command)


async def test_list_show_retry_and_discard(letters: Letters) -> None:
    await letters.make()
    message = change("t", START, "INSERT", row(5, "家庭保洁\x1b[2J"))
    own: list[Header] = [("headrace-id", b"a#1"), ("empty", None)]
    refused = await letters.add(message, offset=11, headers=own)
    other = await letters.add(message, WHY.replace("row 0", "row 3"), offset=12)
    poison = await letters.add(b"\xff\x1b[31m", "not JSON", offset=13, key=None)
    nothing = await letters.add(None, "the message is empty", offset=14)
    assert await letters.add(message, offset=11, headers=own) == refused  # the batch was done again
    # They come out as they are, and once each.
    found = {one["id"]: one for one in letters.open()}
    assert list(found) == [refused, other, poison, nothing]
    reported = found[refused]
    assert (reported["table"], reported["key"], reported["reason"], reported["batch"]) == ("shop.t", "5", WHY, "7")
    assert (reported["topic"], reported["partition"], reported["offset"]) == (letters.pipeline.topic, 1, 11)
    assert [one["id"] for one in letters.open("--reason", "refuses row 3")] == [other]
    assert [one["id"] for one in letters.open("--table", r"shop\..*")] == [refused, other]
    shown = letters.run("list", "--limit", 1).out.splitlines()
    assert shown[0].startswith(f"{refused}  20")
    assert shown[1] == "... and 3 more; --limit shows more of them"
    kind = "Elasticsearch refuses row …: … document_parsing_exception: failed to parse field …"
    assert shown[2:4] == ["4 dead letters", f"       2  {kind}"]

    whole = letters.run("show", refused).out
    assert f"reason:    {WHY}\n" in whole
    assert "header:    headrace-id = a#1\n" in whole
    assert '"name": "家庭保洁\\u001b[2J"' in whole
    assert "headrace-dead" not in whole
    assert "\x1b" not in letters.run("show", poison).out
    assert "\\xff\\u001b[31m" in letters.run("show", poison).out

    assert letters.run("retry", "--all", "--dry-run").out.endswith("4 would be sent again\n")
    assert await letters.records(letters.pipeline.topic) == []
    done = letters.run("retry", refused, nothing, "no-such-id")
    assert (done.code, done.out) == (1, "2 sent again\n")
    assert done.err == "there is no dead letter with the id 'no-such-id'\n"
    back = await letters.records(letters.pipeline.topic)
    assert [(one.partition, one.key, one.value) for one in back] == [(1, b"k", message), (1, b"k", None)]
    assert {one.headers for one in back} == {(), tuple(own)}
    assert [one["id"] for one in letters.open()] == [other, poison]
    assert letters.run("retry", refused).code == 1

    # Without a terminal nothing is dropped that was not confirmed.
    done = letters.run("discard", "--reason", "JSON")
    assert (done.code, done.err) == (1, UNASKED)
    assert len(letters.open()) == 2
    assert letters.run("discard", "--reason", "JSON", "--yes").out == "1 discarded\n"
    assert [one["id"] for one in letters.open()] == [other]
    # What lies before the oldest open letter is gone, also for other readers; the notes say who did it.
    left = await letters.records(letters.dead)
    assert dict(left[0].headers)["headrace-dead-id"].decode() == other
    notes = [dict(one.headers) for one in left if "headrace-dead-note" in dict(one.headers)]
    assert [one["headrace-dead-note"] for one in notes] == [b"retried", b"discarded"]
    assert all(b"@" in one["headrace-dead-by"] for one in notes)
    assert letters.run("discard", other, "--yes").code == 0
    assert letters.open() == []
    assert "0 dead letters" in letters.run("list").out


async def test_letters_in_several_partitions_and_of_places_that_are_gone(letters: Letters) -> None:
    await letters.make(dead_partitions=2)
    names = [await letters.add(b"x", offset=number, dead_partition=number % 2) for number in range(6)]
    await letters.add(b"x", offset=0, dead_partition=1)  # done again, by another task
    lost = await letters.add(b"x", offset=9, partition=7)
    assert {one["id"] for one in letters.open()} == {*names, lost}
    done = letters.run("retry", "--all")
    assert done.code == 1
    assert f"{lost} stays: there is no topic {letters.pipeline.topic} with a partition 7 any more" in done.err
    assert done.out == "6 sent again\n"
    assert len(await letters.records(letters.pipeline.topic)) == 6
    assert [one["id"] for one in letters.open()] == [lost]


@pytest.mark.long
async def test_letters_of_a_megabyte_go_back_whole(letters: Letters) -> None:
    await letters.make()
    values = [b'{"n": %d, "x": "%s"}' % (number, b"y" * 900_000) for number in range(20)]
    for number, value in enumerate(values):
        await letters.add(value, offset=number, partition=0)
    assert letters.run("retry", "--all").out == "20 sent again\n"
    assert [one.value for one in await letters.records(letters.pipeline.topic)] == values


async def test_a_kill_between_publishing_and_the_note_publishes_twice(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace_spark.dead_letters.topic import DeadLetterTopic

    await letters.make()
    name = await letters.add(b"x")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeadLetterTopic, "_note", killed)
        assert letters.run("retry", "--all").code == 130
    assert [one["id"] for one in letters.open()] == [name]
    assert letters.run("retry", "--all").code == 0
    assert [one.value for one in await letters.records(letters.pipeline.topic)] == [b"x", b"x"]
    assert letters.open() == []


async def test_what_is_wrong_is_one_sentence(pipeline: Pipeline, command: Command) -> None:
    done = command("dead-letters", "list", "--config", pipeline.config)
    assert done.code == 1
    assert done.err == (
        f"there is no topic {pipeline.topic}.dead: no dead letter has been written yet, or is it another one?\n"
    )
    for words in (("retry",), ("discard", "an-id", "--all")):
        assert command("dead-letters", words[0], "--config", pipeline.config, *words[1:]).code == 2
    text = pipeline.config.read_text()
    pipeline.config.write_text(text + '[kafka.options]\n"security.protocol" = "NONSENSE"\n')
    done = command("dead-letters", "list", "--config", pipeline.config)
    assert done.code == 1
    assert "the Kafka client does not start" in done.err
    assert "see [kafka.options]" in done.err


@pytest.mark.long
async def test_the_command_as_a_process(letters: Letters) -> None:
    await letters.make()
    name = await letters.add(b"garbage", "not JSON")
    words = [sys.executable, "-m", "headrace_spark.cli.main", "dead-letters", "list", "--config"]
    environment = {**letters.pipeline.environment, "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    done = await asyncio.to_thread(
        subprocess.run, [*words, letters.pipeline.config], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(name)
