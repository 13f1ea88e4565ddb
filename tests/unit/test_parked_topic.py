"""Failed messages as records of a compacted topic: written, read back, changed, taken away, and compacted."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from headrace.adapters.kafka.parking import KafkaParkingStore, ParkingLog, Record, _packed, _unpacked
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state_records import PIECE_BYTES
from headrace.adapters.kafka.state_topic import StateTopic
from headrace.errors import StateStoreError
from headrace.lease import Guard
from headrace.model import Unit
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkedMessage, ParkingState

EVERY = bytes(range(256))
CONTENTS = [
    ParkedContent(b"body", b"key", (("headrace-id", b"g#1"), ("x", EVERY)), "tag", 5),
    ParkedContent(None, None, ()),
    ParkedContent(b"", b"", (("empty", b""),)),
    ParkedContent(EVERY * 20, None, (("a\nb", b"\n\n"),)),
]


def entry(number: int, **more: object) -> ParkedEntry:
    known = {"scope": "t", "topic": "t", "partition": 3, "unit": Unit(("s.t",), ("家",)), "reason": "too large"}
    rest = {"attempts": 2, "state": ParkingState.PENDING, "created_us": 1, "tried_us": 2, "due_us": 3, "size": 4}
    return ParkedEntry(**{"number": number, "id": f"g#{number}", **known, **rest, **more})  # type: ignore[arg-type]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> KafkaParkingStore:
    """A store whose records come back as soon as they are written."""
    store = KafkaParkingStore(KafkaSinkSettings(type="kafka", bootstrap_servers=("h:1",)), "shop", "parked")

    async def read_into(log: ParkingLog, *, settled: bool) -> None: ...

    async def write(topic: StateTopic, records: Sequence[Record]) -> None:
        written(store, records)

    async def write_apart(records: Sequence[Record]) -> None:
        written(store, records)

    monkeypatch.setattr(store.topic, "read_into", read_into)
    monkeypatch.setattr(store, "_write_apart", write_apart)
    store.writer = write
    return store


def written(made: KafkaParkingStore, records: Sequence[Record]) -> None:
    """As if they had come back from the broker."""
    for key, value in records:
        made.log.take(made.log.end, key, value)
        made.log.end += 1


@pytest.mark.parametrize("content", CONTENTS)
def test_a_content_comes_back_byte_by_byte(content: ParkedContent) -> None:
    assert _unpacked(_packed(content)) == content


def test_entries_come_back_and_large_contents_in_pieces(made: KafkaParkingStore) -> None:
    large = ParkedContent(os.urandom(2 * PIECE_BYTES), None, ())
    records = made.added([ParkedMessage(entry(1), CONTENTS[0]), ParkedMessage(entry(2), large)])
    assert [key for key, _ in records] == [
        b"shop/parked/1/0",
        b"shop/parked/1",
        b"shop/parked/2/0",
        b"shop/parked/2/1",
        b"shop/parked/2/2",
        b"shop/parked/2",
    ]
    assert max(len(value or b"") for _, value in records) <= PIECE_BYTES
    written(made, records)
    assert [stored.entry for stored in made.log.entries.values()] == [entry(1), entry(2)]
    assert [made.log.offsets[2, piece] for piece in range(3)] == [2, 3, 4]


async def test_what_is_delivered_leaves_nothing_and_updates_change_the_entry(made: KafkaParkingStore) -> None:
    written(made, made.added([ParkedMessage(entry(1), CONTENTS[0]), ParkedMessage(entry(2), CONTENTS[1])]))
    later = entry(2, attempts=9, state=ParkingState.NEEDS_OPERATOR)
    assert await made.update(Guard(1, 0), [later, entry(7)]) == 1, "one that is gone is not brought back"
    assert made.log.entries[2].entry == later
    assert await made.changes() == 0
    assert await made.update(None, [entry(2)]) == 1
    assert made.log.entries[2].entry == entry(2)
    assert await made.changes() == 1, "the daemon reads again"
    gone = made.removed([1])
    assert gone == [(b"shop/parked/1", None), (b"shop/parked/1/0", None)]
    written(made, gone)
    assert list(made.log.entries) == [2]
    assert [number for number, _ in made.log.offsets] == [2]


def test_one_that_takes_the_place_of_another_takes_that_away_with_all_its_pieces(made: KafkaParkingStore) -> None:
    large = ParkedContent(os.urandom(2 * PIECE_BYTES), None, ())
    written(made, made.added([ParkedMessage(entry(1), large), ParkedMessage(entry(2), CONTENTS[0])]))
    written(made, made.added([ParkedMessage(entry(3, id="g#1"), CONTENTS[1], replaces=1)]))
    assert list(made.log.entries) == [2, 3]
    assert sorted(number for number, _ in made.log.offsets) == [2, 3]


def test_other_destinations_are_passed_over_and_rubbish_is_refused() -> None:
    log = ParkingLog("shop")
    for key in (b"shop2/parked/1", b"orders/parked/1", b"", None):
        log.take(1, key, b"rubbish")
    assert log.entries == {}
    with pytest.raises(StateStoreError, match=r"shop/parked/1.*can't be read"):
        log.take(1, b"shop/parked/1", b"rubbish")


async def test_an_entry_that_an_operator_brought_back_at_its_delivery_is_taken_away_again(
    made: KafkaParkingStore,
) -> None:
    written(made, made.added([ParkedMessage(entry(1), CONTENTS[0])]))
    assert await made.remove(Guard(1, 0), [1, 2]) == 2
    assert made.log.entries == {}
    assert made.log.offsets == {}
