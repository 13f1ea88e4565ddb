"""The records of the state topic: what is written for a change, and what is read back, also after compaction."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.adapters.kafka import state_records
from headrace.adapters.kafka.state_records import (
    HISTORY_LENGTH,
    PIECE_BYTES,
    Content,
    Record,
    change_records,
    head_record,
)
from headrace.adapters.kafka.state_topic import PARTITIONS, partition_of
from headrace.errors import StateStoreError
from headrace.model import OpenXa, Position
from headrace.ports.state import VOID, StateChange
from headrace.ports.state_records import Head


def read(records: list[Record], destination: str = "shop") -> Content:
    content = Content(destination)
    for key, value in records:
        content.take(0, key, value)
    return content


def compacted(records: list[Record]) -> list[Record]:
    """What the broker's cleaner leaves: the newest of each key, in order."""
    newest = {key: number for number, (key, _) in enumerate(records)}
    return [record for number, record in enumerate(records) if newest[record[0]] == number]


def position(offset: int, **more: Any) -> Position:
    return Position("u", "bin.000001", offset, last_pos=offset << 11, **more)


def moved(
    head: Head, to: Position | None, entries: Sequence[dict[str, Any]] = (), *, name: str = "shop", **more: Any
) -> tuple[Head, list[Record]]:
    return change_records(name, head, StateChange(to, tuple(entries), **more))


def test_a_partition_follows_from_the_name_alone() -> None:
    assert [partition_of(name) for name in ("shop", "shop2", "orders")] == [2, 5, 14]
    assert {partition_of(f"d{i}") for i in range(500)} == set(range(PARTITIONS))


def test_what_was_written_is_read_back_and_compaction_takes_nothing_away() -> None:
    head = Head(epoch=3, owner="me")
    log = [head_record("shop", head)]
    for number in range(200):
        entries = [{"n": number}] if number % 7 == 0 else []
        head, records = moved(head, position(number, open_xa=(OpenXa("1:a:b", "f", 4),)), entries)
        log += records
    head, records = moved(head, None, actor="operator", details={"why": "a test"})
    log += records
    for found in (read(log), read(compacted(log))):
        assert found.head == head
        assert (found.head.epoch, found.head.version, found.head.owner) == (3, 201, "me")
        assert found.head.position is None
        assert found.head.last_pos == 199 << 11, "the numbers go on behind what was given out"
        assert found.schema_entries() == [{"n": number} for number in range(0, 200, 7)]
        assert [(entry.actor, entry.version) for entry in found.history()] == [
            ("operator", 201),
            ("checkpoint", 1),
        ]
    assert len(compacted(log)) < 40


def test_other_destinations_in_the_partition_are_passed_over() -> None:
    _, records = moved(Head(), position(5), [{"n": 1}], name="shop2")
    assert read([*records, (b"shop/x", b"?"), (b"nonsense", b"?"), (b"shop/position/deeper", b"")]).head == Head()


def test_a_history_is_a_ring_that_keeps_its_very_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**12, 10**15, 61_000_000))
    monkeypatch.setattr(state_records, "_now_us", lambda: next(clock))
    head, log = Head(), list[Record]()
    for number in range(HISTORY_LENGTH + 30):
        head, records = moved(head, position(number))
        log += records
    found = read(compacted(log))
    versions = [entry.version for entry in found.history()]
    assert versions == [*range(HISTORY_LENGTH + 30, 30, -1), 1]
    assert found.head == head, "the next one goes into the next place of the ring"


def test_a_long_list_of_entries_is_cut_and_put_together_again() -> None:
    noise = random.Random(1)
    entries = [{"ddl": noise.randbytes(600_000).hex(), "n": n} for n in range(3)]
    head, log = moved(Head(), position(1), [{"n": -1}])
    head, records = moved(head, position(2), entries)
    log += records
    assert head.pieces > 3
    assert all(len(value) <= PIECE_BYTES + 20 for _, value in log)
    assert read(log).schema_entries() == [{"n": -1}, *entries]
    with pytest.raises(StateStoreError, match="shop/schema/2"):
        read([record for record in log if record[0] != b"shop/schema/2"]).schema_entries()


def test_pieces_that_are_void_lose_their_values_in_the_transaction_that_makes_them_void() -> None:
    head, log = Head(), list[Record]()
    for number in range(50):
        entries = [{"n": number}] if number % 10 else [{"n": -1}, {**VOID, "at": "x"}, {"n": number}]
        head, records = moved(head, position(number), entries)
        assert [key for key, value in records if value is None] == [
            b"shop/schema/%d" % (number - 10 + i) for i in range(10 if number and number % 10 == 0 else 0)
        ]
        log += records
        counted = [{**VOID, "at": "x"}, *({"n": n} for n in range(number // 10 * 10, number + 1))]
        for found in (read(log), read(compacted(log)), read([one for one in compacted(log) if one[1] is not None])):
            assert found.schema_entries() == counted
    assert len([record for record in compacted(log) if record[1] is not None]) < 20
    head, _ = moved(Head(), position(1), [{"n": 1}])
    assert b'"layout":1' in head.encode(), "an older daemon reads what it understands, and no other"


def test_a_large_position_is_compressed() -> None:
    many = ",".join(f"00000000-0000-0000-0000-{i:012d}:1-5" for i in range(3000))
    head, log = moved(Head(), position(1, gtid_set=many))
    assert len(log[-1][1]) < 40_000
    assert read(log).head == head


@pytest.mark.parametrize(
    "value", [b"?", b"{}", b'{"layout":1}', b'{"layout":3}', b'{"layout":1,"epoch":1,"version":1,"position":{}}']
)
def test_a_state_that_makes_no_sense_is_refused(value: bytes) -> None:
    with pytest.raises(StateStoreError, match="shop/position can't be read") as caught:
        _ = read([(b"shop/position", value)]).head
    assert not caught.value.retriable
