"""Parked messages of an exactly-once destination, in a compacted topic: written in the Kafka transactions of the rest.

Keys, the newest record of each counts:
    D/parked/N      the entry of the parked message N, with how many pieces its content has; a tombstone takes it away
    D/parked/N/I    piece I of its content: key, headers, tag and body, compressed together
    D/changed       written whenever an operator has changed something
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import zstandard
from aiokafka.errors import KafkaError

from headrace.adapters.kafka import producer as producers
from headrace.adapters.kafka.connection import describe
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state_records import PIECE_BYTES
from headrace.adapters.kafka.state_topic import StateTopic
from headrace.errors import StateStoreError
from headrace.lease import Guard
from headrace.parking.packing import ENTRY_FIELDS, entry_of, entry_row
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkedMessage, ParkingStore

Record = tuple[bytes, bytes | None]


@dataclass(slots=True)
class _Stored:
    entry: ParkedEntry
    pieces: int


@dataclass(slots=True)
class ParkingLog:
    """The parked messages according to the records of one destination, which are read one after the other."""

    destination: str
    end: int = 0
    changes: int = 0
    entries: dict[int, _Stored] = field(default_factory=dict)
    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    """The offset of each piece, by message and piece."""

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        name, _, rest = (key or b"").decode(errors="replace").partition("/")
        if name != self.destination:
            return
        kind, *numbers = rest.split("/")
        try:
            if kind == "changed":
                self.changes += 1
            elif kind == "parked" and len(numbers) == 1:
                self._take_entry(int(numbers[0]), value)
            elif kind == "parked":
                number, piece = map(int, numbers)
                if value is None:
                    self.offsets.pop((number, piece), None)
                else:
                    self.offsets[number, piece] = offset
        except (ValueError, KeyError, TypeError) as error:
            raise StateStoreError(
                f"the record {key!r} of {self.destination}'s parked messages can't be read ({error!r})",
                remedy="check whether somebody else writes to the topic",
            ) from error

    def _take_entry(self, number: int, value: bytes | None) -> None:
        if value is None:
            self.entries.pop(number, None)
            return
        raw = orjson.loads(value)
        self.entries[number] = _Stored(entry_of([raw[name] for name in ENTRY_FIELDS]), raw["pieces"])


class KafkaParkingStore(ParkingStore):
    """The parking store. The sink writes new messages, together with the position after them; changes of the redelivery
    loop go through `writer`, which is the run's sink too. An operator's changes are written by a separate producer,
    outside of transactions: it would otherwise fence the daemon's."""

    def __init__(self, settings: KafkaSinkSettings, destination: str, name: str) -> None:
        self._settings, self._destination = settings, destination
        self.topic = StateTopic(settings, destination, name)
        self.log = ParkingLog(destination)
        self.writer: Callable[[StateTopic, Sequence[Record]], Awaitable[None]] | None = None

    async def open(self) -> None:
        await self.topic.ensure()

    async def begin(self, guard: Guard) -> None:
        """Reads the state. The brokers have fenced the former daemon; its removals must be visible to us."""
        self.log = ParkingLog(self._destination)

    async def entries(self) -> list[ParkedEntry]:
        log = await self._refresh(settled=True)
        return [stored.entry for _, stored in sorted(log.entries.items())]

    async def contents(self, numbers: Sequence[int]) -> dict[int, ParkedContent]:
        if any(number not in self.log.entries for number in numbers):
            await self._refresh()
        log, wanted = self.log, [number for number in numbers if number in self.log.entries]
        offsets_of = {number: _offsets(log, number) for number in wanted}
        values = await self.topic.read_at([offset for offsets in offsets_of.values() for offset in offsets])
        return {
            number: _unpacked(b"".join(values[offset] for offset in offsets))
            for number, offsets in offsets_of.items()
            if offsets and all(offset in values for offset in offsets)
        }

    async def add(self, guard: Guard, messages: Sequence[ParkedMessage]) -> None:
        """Does nothing: the sink writes them."""

    async def remove(self, guard: Guard | None, numbers: Sequence[int]) -> int:
        """Removes entries. The sink has removed what it sent again in the same transaction; an entry may still exist if
        an operator changed it at that moment."""
        log = await self._refresh()
        known = [number for number in numbers if number in log.entries]
        await self._write(guard, self.removed(known))
        return len(known if guard is None else numbers)

    async def update(self, guard: Guard | None, entries: Sequence[ParkedEntry]) -> int:
        known = (await self._refresh()).entries
        records: list[Record] = [
            (self._key(entry.number), _entry_json(entry, known[entry.number].pieces))
            for entry in entries
            if entry.number in known
        ]
        await self._write(guard, records)
        return len(records)

    async def changes(self) -> int:
        return (await self._refresh()).changes

    async def problems(self) -> list[str]:
        return await self.topic.problems()

    async def _refresh(self, *, settled: bool = False) -> ParkingLog:
        """Reads new records; `settled`: waits for what open transactions of others hide."""
        await self.topic.read_into(self.log, settled=settled)
        return self.log

    async def _write(self, guard: Guard | None, records: Sequence[Record]) -> None:
        if guard is None:
            await self._write_apart([*records, (f"{self._destination}/changed".encode(), b"1")])
        elif records and self.writer is not None:
            await self.writer(self.topic, records)

    async def _write_apart(self, records: Sequence[Record]) -> None:
        producer, topic = producers.make_producer(self._settings), self.topic
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await producer.start()
                for part in producers.build_records(producer, records):
                    await (await producer.send_batch(part, topic.name, partition=topic.partition))
        except (KafkaError, OSError, TimeoutError) as error:
            raise StateStoreError(
                f"the parked messages in the topic {topic.name} can't be changed ({describe(error)})"
            ) from error
        finally:
            await producers.close(producer)

    # -- records, for the sink ------------------------------------------------------------------------------------

    def added(self, messages: Sequence[ParkedMessage]) -> list[Record]:
        """Returns the records to write for new messages; one that replaces another removes that."""
        records = self.removed(message.replaces for message in messages if message.replaces)
        for message in messages:
            packed = _packed(message.content)
            pieces = [packed[i : i + PIECE_BYTES] for i in range(0, len(packed), PIECE_BYTES)]
            number = message.entry.number
            records += [(self._key(number, i), piece) for i, piece in enumerate(pieces)]
            records.append((self._key(number), _entry_json(message.entry, len(pieces))))
        return records

    def removed(self, numbers: Iterable[int]) -> list[Record]:
        """Returns the records to write for messages that are delivered or discarded."""
        records: list[Record] = []
        for number in numbers:
            stored = self.log.entries.get(number)
            records.append((self._key(number), None))
            records += [(self._key(number, i), None) for i in range(stored.pieces if stored else 0)]
        return records

    def _key(self, *numbers: int) -> bytes:
        return "/".join([self._destination, "parked", *map(str, numbers)]).encode()


def _offsets(log: ParkingLog, number: int) -> list[int]:
    """Returns the offsets of a message's pieces; none if one is missing."""
    stored = log.entries[number]
    offsets = [log.offsets.get((number, piece), -1) for piece in range(stored.pieces)]
    return [] if -1 in offsets else offsets


def _entry_json(entry: ParkedEntry, pieces: int) -> bytes:
    return orjson.dumps({**dict(zip(ENTRY_FIELDS, entry_row(entry), strict=True)), "pieces": pieces})


def _packed(content: ParkedContent) -> bytes:
    """Returns lengths and names as a line of JSON, then the bytes one after the other, compressed."""
    values = [content.key, content.body, *(value for _, value in content.headers)]
    head: dict[str, Any] = {
        "sizes": [None if value is None else len(value) for value in values],
        "names": [name for name, _ in content.headers],
        "tag": content.tag,
        "commit_time_us": content.commit_time_us,
    }
    return zstandard.compress(orjson.dumps(head) + b"\n" + b"".join(value or b"" for value in values))


def _unpacked(packed: bytes) -> ParkedContent:
    text, _, rest = zstandard.decompress(packed).partition(b"\n")
    head, at, values = orjson.loads(text), 0, list[bytes | None]()
    for size in head["sizes"]:
        values.append(None if size is None else rest[at : at + size])
        at += size or 0
    key, body, *others = values
    headers = tuple((name, value or b"") for name, value in zip(head["names"], others, strict=True))
    return ParkedContent(body, key, headers, head["tag"], head["commit_time_us"])
