"""The topic of dead letters, read as a whole; dead letters that are sent back to their topics, and notes about them."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

from headrace_documents.dead_letters import Content, DeadLetters
from headrace_spark.dead_letters.records import IDS_A_NOTE, Fold, Handled, OpenDeadLetter, note_headers, own_headers
from headrace_spark.source.kafka_client import KafkaClient, KafkaError, Range, Read, Sent

_BATCH_BYTES = 16 << 20


class DeadLetterTopic(DeadLetters[OpenDeadLetter]):
    """All dead letters that are open when it is made. It keeps only small facts of each."""

    def __init__(self, client: KafkaClient, topic: str, say: Callable[[str], None]) -> None:
        """Reads the topic from its beginning to its present end. Raises KafkaError."""
        self._client, self._topic, self._say = client, topic, say
        found = client.topic(topic)
        if found is None:
            raise KafkaError(f"there is no topic {topic}: no dead letter has been written yet, or is it another one?")
        self._ranges = client.ranges(topic, found.partitions)
        self._fold = Fold()
        for partition, whole in self._ranges.items():
            for one in client.read(topic, partition, whole):
                self._fold.take((partition, one.offset), one.timestamp, one.key, one.value, one.headers)

        if foreign := self._fold.foreign:
            self.note = f"{foreign} further records are no dead letters of headrace; nothing before them is deleted"

    @property
    def all(self) -> Sequence[OpenDeadLetter]:
        """Returns the open ones."""
        return list(self._fold.open.values())

    def content(self, one: OpenDeadLetter) -> Content | None:
        partition, offset = next(iter(one.places.items()))
        for found in self._client.read(self._topic, partition, Range(offset, offset + 1)):
            return Content(found.key, own_headers(found.headers), found.value)
        return None

    def retry(self, chosen: Sequence[OpenDeadLetter]) -> dict[str, str]:
        """Publishes the messages of dead letters to their topics and partitions, unchanged, and then records it. A kill
        between the two leaves dead letters open that were published: a second retry is harmless, since versions decide.
        Raises KafkaError."""
        refused = self._without_a_place(chosen)
        done: list[str] = []
        for group in self._groups([letter for letter in chosen if letter.id not in refused]):
            answers = self._client.publish(
                [
                    Sent(one.origin.topic, one.origin.partition, got.key, got.value, own_headers(got.headers))
                    for one, got in group
                ]
            )
            refused |= {one.id: why for (one, _), why in zip(group, answers, strict=True) if why}
            published = [one for one, _ in group if one.id not in refused]
            self._note("retried", published)
            done += [one.id for one in published]
        self._trim(done)
        return refused

    def discard(self, chosen: Sequence[OpenDeadLetter]) -> None:
        """Records that dead letters are discarded. Raises KafkaError."""
        for start in range(0, len(chosen), IDS_A_NOTE):
            self._note("discarded", chosen[start : start + IDS_A_NOTE])
        self._trim([letter.id for letter in chosen])

    # -- the way back -------------------------------------------------------------------------------------------------

    def _without_a_place(self, chosen: Iterable[OpenDeadLetter]) -> dict[str, str]:
        """Returns those that can't be sent back; checked first, because a producer would create a missing topic."""
        partitions: dict[str, frozenset[int]] = {}
        for name in {letter.origin.topic for letter in chosen}:
            found = self._client.topic(name)
            partitions[name] = frozenset(found.partitions if found else ())
        return {
            letter.id: f"there is no topic {letter.origin.topic} with a partition {letter.origin.partition} any more"
            for letter in chosen
            if letter.origin.partition not in partitions[letter.origin.topic]
        }

    def _groups(self, chosen: Iterable[OpenDeadLetter]) -> Iterator[list[tuple[OpenDeadLetter, Read]]]:
        """Yields the dead letters with their records, a limited number at a time because of memory; each time in the
        order of the messages, which decides between changes of the same version."""
        group: list[tuple[OpenDeadLetter, Read]] = []
        size = 0
        for letter, record in self._records(chosen):
            group.append((letter, record))
            size += letter.size
            if len(group) >= IDS_A_NOTE or size >= _BATCH_BYTES:
                yield sorted(group, key=lambda one: one[0].origin)
                group, size = [], 0
        if group:
            yield sorted(group, key=lambda one: one[0].origin)

    def _records(self, chosen: Iterable[OpenDeadLetter]) -> Iterator[tuple[OpenDeadLetter, Read]]:
        wanted: dict[int, dict[int, OpenDeadLetter]] = {}
        for letter in chosen:
            partition, offset = next(iter(letter.places.items()))
            wanted.setdefault(partition, {})[offset] = letter
        for partition, letters in wanted.items():
            for part in runs(sorted(letters)):
                for record in self._client.read(self._topic, partition, part):
                    if (letter := letters.get(record.offset)) is not None:  # type: ignore[assignment]
                        yield letter, record

    def _note(self, what: Handled, letters: Sequence[OpenDeadLetter]) -> None:
        by_partition: dict[int, list[str]] = {}
        for letter in letters:
            for partition in letter.places:
                by_partition.setdefault(partition, []).append(letter.id)
        notes = [
            Sent(self._topic, partition, b"headrace-dead-note", None, note_headers(what, names, _who()))
            for partition, names in by_partition.items()
        ]
        if why := next(filter(None, self._client.publish(notes)), ""):
            raise KafkaError(f"topic {self._topic} does not take the note that letters were {what}: {why}")

    def _trim(self, done: Iterable[str]) -> None:
        """Deletes what is before the oldest open dead letter, if the account may."""
        floors = self._fold.floors({partition: whole.end for partition, whole in self._ranges.items()}, done)
        floors = {partition: floor for partition, floor in floors.items() if floor > self._ranges[partition].first}
        if not floors:
            return
        try:
            self._client.delete_before(self._topic, floors)
        except KafkaError as error:
            self._say(
                f"handled letters stay in topic {self._topic} until its retention ends, because Kafka does not delete "
                f"them: {error}. Give the account the right Delete on the topic if they take too much room."
            )


def runs(offsets: Sequence[int], gap: int = 200) -> Iterator[Range]:
    """Yields sorted offsets as parts of a partition that are read at a time: over a short gap it is faster to read
    on."""
    start = 0
    for number in range(1, len(offsets) + 1):
        if number == len(offsets) or offsets[number] - offsets[number - 1] > gap:
            yield Range(offsets[start], offsets[number - 1] + 1)
            start = number


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
