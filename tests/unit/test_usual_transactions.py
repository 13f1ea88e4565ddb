"""Transactions that begin as others did are read at once, and nothing that comes out differs from event by event."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli.wiring import new_format
from headrace.mysql import usual_transactions
from headrace.mysql.decoder import Decoder
from headrace.mysql.usual_transactions import UsualTransactions
from headrace.pipeline.message_builder import make_builder
from headrace.ports.source import Receiver
from headrace.settings.destination import DestinationSettings
from tests import native_differential
from tests.configured import destination_of
from tests.made_binlog import Binlog
from tests.native_differential import Reading

WHOLE = Reading(native_differential.WHOLE, [1 << 30])
MICROS = 1_700_000_000_000_000
Edit = Callable[[bytearray, list[int]], None]
"""Changes packets; is told where those of one transaction begin: GTID, BEGIN, TABLE_MAP, rows, XID."""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each run has read at once."""
    counts: list[int] = []
    run = UsualTransactions.run

    def counted(self: UsualTransactions, data: bytes, at: int, *, eager: bool) -> tuple[int, int, int, bool]:
        done = run(self, data, at, eager=eager)
        counts.append(done[1])
        return done

    monkeypatch.setattr(UsualTransactions, "run", counted)
    return counts


def settings(**more: Any) -> DestinationSettings:
    sections: dict[str, Any] = {
        "name": "shop",
        "source": {"host": "h", "user": "u", "password": "p"},
        "route": {"topic": "shop"},
        "sink": {"type": "kafka", "bootstrap_servers": "k:9092"},
    }
    return destination_of(sections | more)


def small(count: int = 40) -> tuple[bytearray, list[list[int]]]:
    """A binlog of transactions of one row; where the packets of each begin."""
    binlog, places = Binlog().begin_file(), []
    for number in range(1, count + 1):
        begun = len(binlog.packets)
        binlog.transaction(number, MICROS + number, [(number, f"row {number}")])
        at, own = begun, []
        while at < len(binlog.packets):
            own.append(at)
            at += 4 + int.from_bytes(binlog.packets[at : at + 3], "little")
        places.append(own)
    return binlog.packets, places


def same(data: bytes, config: DestinationSettings, way: Reading = WHOLE) -> list[Any]:
    """What comes of a binlog, both ways."""
    single = native_differential.outcome(data, config, None, way, single=True)
    assert native_differential.outcome(data, config, None, way) == single
    return single


def sealed(data: bytearray, at: int) -> None:
    """Gives an event that was changed the CRC32 that it has now."""
    size = int.from_bytes(data[at : at + 3], "little") - 1
    data[at + 1 + size : at + 5 + size] = zlib.crc32(data[at + 5 : at + 1 + size]).to_bytes(4, "little")


def test_small_transactions_are_read_at_once(at_once: list[int]) -> None:
    data, _ = small()
    told = same(bytes(data), settings())
    assert sum(isinstance(one, tuple) and len(one) == 3 and isinstance(one[1], list) for one in told) == 40
    assert sum(at_once) > 180, "of 200 events"


@pytest.mark.parametrize("size", [1 << 30, 1000, 333, 50])
@pytest.mark.parametrize("eager", [False, True])
def test_wherever_the_stream_is_cut(size: int, eager: bool) -> None:
    data, _ = small()
    same(bytes(data), settings(), Reading(native_differential.WHOLE, [size], 1, eager))


def test_tables_in_turn_whose_names_are_as_long(at_once: list[int]) -> None:
    binlog = Binlog().begin_file()
    for number in range(60):
        binlog.gtid(number + 1, MICROS + number)
        binlog.query("BEGIN")
        binlog.table(("ta", "tb", "tall")[number % 3])
        binlog.insert((number, "row"))
        binlog.event(16, struct.pack("<Q", number))
    same(bytes(binlog.packets), settings())
    assert sum(at_once) > 250, "of 300 events"


def test_sessions_whose_begin_says_other_things(at_once: list[int]) -> None:
    """As it does with the microseconds of CURRENT_TIMESTAMP(3), in each transaction anew."""
    binlog = Binlog().begin_file()
    for number in range(40):
        binlog.gtid(number + 1, MICROS + number)
        micros = b"\x0d" + number.to_bytes(3, "little")
        binlog.event(2, struct.pack("<IIBHH", 1, 0, 4, 0, len(micros)) + micros + b"shop\0BEGIN")
        binlog.table()
        binlog.insert((number, "row"))
        binlog.event(16, struct.pack("<Q", number))
    same(bytes(binlog.packets), settings())
    assert sum(at_once) > 180


def test_more_tables_than_are_remembered(at_once: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usual_transactions, "_MOST_SEAMS", 3)
    monkeypatch.setattr(usual_transactions, "_MOST_SHAPES", 2)
    binlog = Binlog().begin_file()
    for number in range(200):
        binlog.gtid(number + 1, MICROS + number)
        binlog.query("BEGIN")
        binlog.table("t" * (1 + number // 4 % 5) + "xyz"[number % 3])
        binlog.insert((number, "row"))
        binlog.event(16, struct.pack("<Q", number))
    same(bytes(binlog.packets), settings())
    assert sum(at_once) > 200


def test_without_gtids(at_once: list[int]) -> None:
    binlog = Binlog().begin_file()
    for number in range(40):
        binlog.transaction(0, MICROS + number, [(number, "row")])
    same(bytes(binlog.packets), settings())
    assert sum(at_once) > 180


@pytest.mark.parametrize("event", range(5))
def test_a_damaged_event_is_refused_at_its_own_place(event: int) -> None:
    data, places = small()
    data[places[20][event] + 26] ^= 1
    told = same(bytes(data), settings())
    errors = [one[1] for one in told if one[0] == "error"]
    assert len(errors) == 1
    assert "CRC32" in errors[0]


def test_two_damages_do_not_make_up_for_each_other() -> None:
    """Equal changes in two events of a seam, the second of which is as far from its end."""
    data, places = small()
    for event in (0, 1):
        data[places[20][event] + 26] ^= 1
    assert any(one[0] == "error" for one in same(bytes(data), settings()))


def _sequence(data: bytearray, at: list[int]) -> None:
    data[at[1] + 3] ^= 0x55


def _server(data: bytearray, at: list[int]) -> None:
    data[at[1] + 10] = 9
    sealed(data, at[1])


def _session(data: bytearray, at: list[int]) -> None:
    data[at[1] + 24] = 77
    sealed(data, at[1])


def _position(data: bytearray, at: list[int]) -> None:
    data[at[0] + 18] ^= 1
    sealed(data, at[0])


def _end(data: bytearray, at: list[int]) -> None:
    data[at[2] + 18] ^= 1
    sealed(data, at[2])


def _number(data: bytearray, at: list[int]) -> None:
    """The table's, in its description alone."""
    data[at[2] + 24] ^= 0xFF
    sealed(data, at[2])


def _flags(data: bytearray, at: list[int]) -> None:
    data[at[0] + 22] |= 0x80
    sealed(data, at[0])


def _kind(data: bytearray, at: list[int]) -> None:
    data[at[4] + 9] = 200
    sealed(data, at[4])


def _type(data: bytearray, at: list[int]) -> None:
    """A column's, so that the table is another one."""
    found = data.index(b"\x03\x0f", at[2])
    data[found] = 0x08
    sealed(data, at[2])


def _time(data: bytearray, at: list[int]) -> None:
    """The commit is earlier than the one before, and has an original time."""
    data[at[0] + 24 + 42 : at[0] + 24 + 49] = (MICROS - 10 | 1 << 55).to_bytes(7, "little")
    sealed(data, at[0])


def _gap(data: bytearray, at: list[int]) -> None:
    data[at[0] + 24 + 17] += 5
    sealed(data, at[0])


@pytest.mark.parametrize(
    "edit", [_sequence, _server, _session, _position, _end, _number, _flags, _kind, _type, _time, _gap]
)
@pytest.mark.parametrize("skip", [False, True])
def test_what_is_not_as_usual_comes_out_the_same(edit: Edit, skip: bool) -> None:
    data, places = small()
    edit(data, places[20])
    more: dict[str, Any] = {}
    if skip:
        offsets = [offset for _, _, offset in native_differential.events_of(bytes(data)) if offset > 0]
        source = {"host": "h", "user": "u", "password": "p", "skip_event": [f"b.000001:{one}" for one in offsets]}
        more = {"source": source}
    same(bytes(data), settings(**more))


def test_rows_that_can_not_be_read_are_passed_over(at_once: list[int]) -> None:
    data, places = small()
    at = places[20][3]
    data[at + 24 + 12] = 0xFC  # NULL bits that the row does not have
    sealed(data, at)
    offset = next(offset for begin, _, offset in native_differential.events_of(bytes(data)) if begin == at)
    source = {"host": "h", "user": "u", "password": "p", "skip_event": [f"b.000001:{offset}"]}
    same(bytes(data), settings(source=source))
    assert sum(at_once) > 150


@pytest.mark.parametrize("skip", [False, True])
def test_rows_that_are_shorter_than_the_header_of_an_event_are_none(skip: bool) -> None:
    """Of 18 bytes, the last four of which are their CRC32, behind BEGIN and TABLE_MAP."""
    data, places = small()
    at = places[20][3]
    offset = next(offset for begin, _, offset in native_differential.events_of(bytes(data)) if begin == at)
    assert offset == 5960
    short = struct.pack("<IBIIIH", 0xA7F8EE0D, 30, 0, 18, offset + 18, 0)[:18]
    assert zlib.crc32(short[:14]).to_bytes(4, "little") == short[14:]
    data[at:at] = b"\x13\0\0\0\0" + short
    source = {"host": "h", "user": "u", "password": "p", "skip_event": [f"b.000001:{offset}"]}
    told = same(bytes(data), settings(source=source) if skip else settings())
    assert any(one[0] == "error" and "is no event" in one[1] for one in told)


def test_many_rows_of_one_transaction_do_not_hold_up_whoever_waits() -> None:
    binlog = Binlog().begin_file()
    binlog.gtid(1, MICROS)
    binlog.query("BEGIN")
    binlog.table()
    for number in range(200):
        binlog.insert((number, "row"))
    config = settings()
    builder = make_builder(config, new_format(config), "server", 1, None)
    made = Decoder(native_differential.WHOLE, Receiver(rows=builder.emit, full=lambda: True), captures=builder.captures)
    at, more, turns = 0, True, 0
    while more:
        at, more = made.feed(bytes(binlog.packets), at, lambda: True)
        turns += 1
    made.close()
    assert turns > 10


def test_transactions_without_rows_do_not_hold_up_whoever_waits(at_once: list[int]) -> None:
    binlog = Binlog().begin_file()
    for number in range(1, 400):
        binlog.gtid(number, MICROS + number)
        binlog.query("BEGIN")
        binlog.table()
        if number < 50:
            binlog.insert((number, "row"))
        binlog.event(16, struct.pack("<Q", number))
    same(bytes(binlog.packets), settings())
    asked: list[int] = []

    def full() -> bool:
        asked.append(1)
        return False

    made = Decoder(native_differential.WHOLE, Receiver(rows=lambda _: None, full=full), captures=lambda *_: True)
    made.feed(bytes(binlog.packets), 0, lambda: False)
    made.close()
    assert max(at_once) > 1000, "of 1645 events"
    assert len(asked) > 40


def test_random_and_damaged_binlogs() -> None:
    config = settings()
    for seed in range(60):
        rng = random.Random(seed)
        data, _ = small(30)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(180, len(data))] = rng.randrange(256)
        same(bytes(data), config, Reading(native_differential.WHOLE, [rng.choice((1 << 30, 900))]))
