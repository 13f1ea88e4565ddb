"""What the store of a cluster writes into its nodes is read back as it was, and anything else is refused by name."""

from __future__ import annotations

import random
import string
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cluster.paths import Paths, node_name, part
from headrace.errors import StateStoreError
from headrace.model import Position
from headrace.ports.state import StateChange
from headrace.ports.state_records import CHECKPOINT_US, Head, join, read_entry, split

PIECE = 350_000
POSITION = Position("uuid", "mysql-bin.000001", 4, gtid_set="u:1-5", last_pos=2**63 - 1)


def test_a_head_is_read_back_small_and_large() -> None:
    for gtid_set in ("", "u:1-5", "".join(random.Random(1).choices(string.digits, k=100_000))):
        change = StateChange(replace(POSITION, gtid_set=gtid_set), actor="operator", details={"why": "x"})
        head = Head(epoch=3, version=7).moved(change, 2, 1)
        assert Head.decode(head.encode(), "/p") == head
        assert head.version == 8
        assert head.pieces == 2
    assert Head.decode(Head().encode(), "/p") == Head()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\x28\xb5\x2f\xfdxx", b'{"layout": 1}', b"17"])
def test_anything_else_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(StateStoreError, match="/the/node") as caught:
        Head.decode(data, "/the/node")
    assert not caught.value.retriable


def test_a_later_layout_is_refused() -> None:
    with pytest.raises(StateStoreError, match="layout 3"):
        Head.decode(Head().encode().replace(b'"layout":1', b'"layout":3'), "/p")


def test_a_history_entry_is_read_back() -> None:
    head = Head(epoch=2).moved(StateChange(POSITION, details={"a": 1}), 0, 5)
    entry = read_entry(head.encode_entry(), "/p")
    assert entry == head.entry()
    assert (entry.actor, entry.epoch, entry.version, entry.position) == ("checkpoint", 2, 1, POSITION)
    assert (entry.details, entry.changed_us) == ({"a": 1}, 5)


def test_checkpoints_of_large_positions_enter_the_history_less_often() -> None:
    head = Head(rings={"checkpoint": 1})
    small = head.moved(StateChange(POSITION), 0, CHECKPOINT_US)
    large = head.moved(StateChange(replace(POSITION, gtid_set="x" * 20_000)), 0, CHECKPOINT_US)
    assert small.history_due()
    assert not large.history_due()
    assert replace(large, changed_us=2 * CHECKPOINT_US).history_due()
    assert replace(large, actor="policy").history_due()


def test_the_slots_of_a_ring_come_again() -> None:
    head, slots = Head(actor="checkpoint"), []
    for _ in range(62):
        head, slot = head.noted(60)
        slots.append(slot)
    assert slots[61:] == slots[1:2]
    assert len(set(slots)) == 61, "the very first has one of its own"


@given(st.lists(st.lists(st.dictionaries(st.text(), st.integers(0, 2**53)), min_size=1), max_size=5))
@settings(max_examples=50, deadline=None)
def test_pieces_are_joined_again(writes: list[list[dict[str, int]]]) -> None:
    pieces = [piece for write in writes for piece in split(write, PIECE)]
    assert join((str(number), piece) for number, piece in enumerate(pieces)) == [e for write in writes for e in write]


def test_large_entries_are_split_and_a_missing_or_unknown_piece_is_named() -> None:
    entry = {"t": "".join(random.Random(1).choices(string.printable, k=1_500_000))}
    pieces = [(f"/schema/{number}", piece) for number, piece in enumerate(split([entry], PIECE))]
    assert len(pieces) > 3
    assert all(len(piece) <= PIECE + 20 for _, piece in pieces)
    assert join(pieces) == [entry]
    with pytest.raises(StateStoreError, match="/schema/2"):
        join(pieces[:1] + pieces[2:])
    with pytest.raises(StateStoreError, match="missing"):
        join(pieces[:-1])
    with pytest.raises(StateStoreError, match="/schema/0"):
        join([(pieces[0][0], b"rubbish")])
    with pytest.raises(StateStoreError, match="/schema/1"):
        join([pieces[0], (pieces[1][0], b"1/1\nx")])
    with pytest.raises(StateStoreError, match=pieces[-1][0]):
        join([*pieces[:-1], (pieces[-1][0], pieces[-1][1][:1000])])


@pytest.mark.parametrize("name", ["a", "db-1.example.com", "a/b", ".", "..", "höst", "a b, command 7", "a%2Fb"])
def test_a_daemons_name_is_one_part_of_a_path(name: str) -> None:
    path = Paths("/headrace").member(name)
    assert path.count("/") == 3
    assert part(name) not in (".", "..")
    assert node_name(path.rpartition("/")[2]) == name
