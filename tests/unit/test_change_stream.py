"""What a stream of changes promises: waits, the server's last word, going on behind the end, and counts."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import NotUnderstood, PositionLost, ServerIdTaken, SourceChanged, SourceEnded, WrongChecksum
from headrace.model import Position, RowsChange
from headrace.mysql import change_stream
from headrace.mysql.change_stream import Dumps, MysqlStream
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.opening import Dump as MysqlDump
from headrace.ports.source import Receiver
from tests.made_binlog import Binlog, captured, payload
from tests.streams import START, Dump, Step, error_packet, no_schemas, opened, settings, three, until

SOURCE = settings().source


class Site(Dumps):
    """A stream over a dump by hand; `further` are the dumps behind it."""

    def __init__(self, *steps: Step, full: int = 1 << 30, between: bool = False, hung: str = "") -> None:
        self.changes, self.thrown_out, self.begun = list[RowsChange](), 0, 0
        self.dump, self.further, self.asked = Dump(*steps), list[MysqlDump](), list[Position]()
        first = opened(self.dump, START, SOURCE)
        receiver = Receiver(
            rows=self.changes.append,
            begin=self._begin,
            full=lambda: len(self.changes) >= full,
            between=lambda: between,
            hung=hung,
        )
        self.stream = MysqlStream(first, no_schemas(first.server), receiver, DecoderOptions(), self)
        self.damaged: list[str] = []

    async def read(self, offset: int) -> None:
        """Reads up to there: a slow machine needs more than one call."""
        while self.stream.progress().offset < offset:
            await self.stream.read()

    async def exhaust(self) -> None:
        """Reads until that raises."""
        while True:
            await self.stream.read()

    def _begin(self) -> None:
        self.begun += 1

    def first_damage(self, place: str) -> bool:
        self.damaged.append(place)
        return place not in self.damaged[:-1]

    def disconnected(self) -> None:
        self.thrown_out += 1

    async def reopen(self, position: Position) -> MysqlDump:
        self.asked.append(position)
        return self.further.pop(0)


def again(data: bytes, **start: Any) -> MysqlDump:
    return opened(Dump(data), replace(START, **start), SOURCE)


async def test_a_read_returns_the_received_changes_and_the_position_after_them() -> None:
    log, starts, _ = three()
    site = Site(bytes(log.packets))
    await site.read(starts[3])
    assert len(site.changes) == 6
    assert site.stream.position().offset == starts[3]
    progress = site.stream.progress()
    assert (progress.transactions, progress.bytes, progress.offset) == (3, len(log.packets), starts[3])
    assert site.stream.has_reached(("b.000001", starts[3]))
    assert not site.stream.has_reached(("b.000001", starts[3] + 1))
    assert site.begun >= 1
    await site.stream.close()
    await site.stream.close()


async def test_a_full_receiver_ends_a_read_and_the_next_one_goes_on() -> None:
    log = Binlog().begin_file()
    for number in range(1, 101):
        log.transaction(number, 1_700_000_000_000_000, [(number, "a")])
    site = Site(bytes(log.packets), full=1)
    await site.stream.read()
    assert 0 < len(site.changes) < 20
    while len(site.changes) < 100:
        await site.stream.read()
    assert site.stream.progress().transactions == 100


async def test_a_cancelled_read_has_given_nothing_and_may_be_called_again() -> None:
    log, starts, packets = three()
    data, more = bytes(log.packets), asyncio.Event()
    middle = packets[1] + 7  # within an event
    site = Site(data[:middle], more, data[middle:])
    await site.read(starts[1])
    given = len(site.changes)
    reading = asyncio.create_task(site.stream.read())
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len(site.changes) == given
    site.dump._steps = iter([data[middle:]])
    await site.read(starts[3])
    assert [row[0] for change in site.changes for row in change.rows] == [1, 11, 2, 12, 3, 13]
    assert site.stream.position().offset == starts[3]


async def test_what_came_before_the_servers_word_is_given_and_the_next_read_raises_it() -> None:
    log, starts, _ = three()
    site = Site(bytes(log.packets) + error_packet(1236, "Could not find first log file name in binary log index file"))
    for _ in range(2):
        with pytest.raises(PositionLost):
            await site.exhaust()
    assert len(site.changes) == 6
    assert site.stream.position().offset == starts[3]


async def test_a_statement_that_is_not_understood_is_raised_at_once() -> None:
    log = Binlog().begin_file()
    log.event(2, b"")
    site = Site(bytes(log.packets))
    with pytest.raises(NotUnderstood):
        await site.stream.read()


@pytest.mark.parametrize("again_damaged", [False, True], ids=["on its way", "at the source"])
async def test_an_event_with_a_wrong_checksum_is_read_once_more_before_the_source_is_to_blame(
    again_damaged: bool,
) -> None:
    log, starts, packets = three()
    data = bytes(log.packets)
    damaged = bytearray(data)
    damaged[packets[2] + 40] ^= 1
    site = Site(bytes(damaged))
    with pytest.raises(SourceEnded, match=f"b.000001:{starts[2]}: the CRC32 .* is wrong; it is read once more"):
        await site.exhaust()
    assert len(site.changes) == 4, "what came before it is given"
    site.further = [again(bytes(damaged if again_damaged else data)[packets[2] :], offset=starts[2])]
    await site.stream.reopen()
    if again_damaged:
        with pytest.raises(WrongChecksum, match="the CRC32 of an event"):
            await site.exhaust()
        assert len(site.changes) == 4
    else:
        await site.read(starts[3])
        assert [row[0] for change in site.changes for row in change.rows] == [1, 11, 2, 12, 3, 13]
    assert set(site.damaged) == {f"b.000001:{starts[2]}"}


async def test_a_dump_that_ended_is_followed_by_another_and_counts_go_on() -> None:
    log, starts, packets = three()
    data = bytes(log.packets)
    site = Site(data[: packets[2]], SourceEnded("ended"))
    await site.read(starts[2])
    before = site.stream.progress()
    with pytest.raises(SourceEnded):
        await site.exhaust()
    site.further = [again(data[packets[2] :], offset=starts[2])]
    assert await site.stream.reopen() == SOURCE.server_id
    assert site.dump.closed
    assert [position.offset for position in site.asked] == [starts[2]]
    await site.read(starts[3])
    after = site.stream.progress()
    assert len(site.changes) == 6
    assert (before.transactions, after.transactions) == (2, 3)
    assert after.events > before.events
    assert after.bytes == len(data)


async def test_a_dump_that_spares_the_source_is_joined_also_if_all_that_comes_ends_within_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(change_stream, "_JOIN", 0.0)
    log, begins = Binlog().begin_file(), dict[int, int]()
    for number in range(1, 101):
        begins[log.at] = len(log.packets)
        log.transaction(number, 1_700_000_000_000_000, [(number, "a")])
    data, last = bytes(log.packets), list(begins.values())[-1]
    site = Site(data[: last + 30])
    joined = list[int]()

    async def join(position: Position, _: MysqlDump) -> MysqlDump | None:
        if len(site.changes) < 3 or joined:
            return None
        joined.append(position.offset)
        return again(data[begins[position.offset] :], offset=position.offset)

    site.spares, site.join = True, join  # type: ignore[method-assign]
    async with asyncio.timeout(30):  # what comes ends before the last row
        while len(site.changes) < 100:
            await site.stream.read()
    assert joined
    assert list(begins).index(joined[0]) < 50, "late"
    assert [change.rows[0][0] for change in site.changes] == list(range(1, 101))


async def test_another_server_is_not_gone_on_with() -> None:
    log, starts, _ = three()
    site = Site(bytes(log.packets))
    await site.read(starts[3])
    other = again(b"", server_uuid="other")
    site.further = [other]
    with pytest.raises(SourceChanged):
        await site.stream.reopen()
    assert other.packets.closed  # type: ignore[attr-defined]


async def test_that_somebody_took_our_server_id_is_remembered_when_it_is_met() -> None:
    text = "A replica with the same server_uuid/server_id as this replica has connected to the source"
    site = Site(error_packet(1236, text))
    with pytest.raises(ServerIdTaken):
        await site.exhaust()
    assert site.thrown_out == 1


async def test_silence_is_reported_only_while_a_read_waits() -> None:
    log, starts, _ = three()
    site = Site(bytes(log.packets))
    await site.read(starts[3])
    assert site.stream.silent_since() == 0.0
    reading = asyncio.create_task(site.stream.read())
    await until(lambda: site.stream.silent_since() > 0.0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await site.stream.close()
    assert site.stream.silent_since() == 0.0


async def test_a_closed_stream_holds_no_tables() -> None:
    """Whatever still refers to it."""
    data, _, _ = three()
    site = Site(bytes(data.packets))
    await site.read(data.at)
    maps = site.stream._decoder.maps
    assert maps.tables
    assert maps._maps
    await site.stream.close()
    assert not maps.tables
    assert not maps._maps


# -- transactions that hold others, or wait ---------------------------------------------------------------------------

_NOT_ROWS = struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\xff\xfc\x01"
"""The body of a rows event that ends too early."""


def _transaction(log: Binlog, number: int, *more: Callable[[], object], compressed: bool = True) -> None:
    """One row between what `more` writes and the end."""
    log.gtid(number, 1_700_000_000_000_000 + number)
    row = lambda: log.insert((number, "a"))  # noqa: E731
    parts: list[Callable[[], object]] = [
        lambda: log.query("BEGIN"),
        *more,
        log.table,
        row,
        lambda: log.event(16, bytes(8)),
    ]
    if compressed:
        log.event(40, payload(captured(log, *parts)))
        return
    for part in parts:
        part()


@pytest.mark.parametrize("kind", [30, 99])
@pytest.mark.parametrize("compressed", [False, True])
async def test_what_came_before_an_event_that_is_not_understood_is_given_first(kind: int, compressed: bool) -> None:
    log = Binlog().begin_file()
    for number in range(1, 21):
        _transaction(log, number, compressed=compressed)
    end = log.at
    _transaction(log, 21, log.table, lambda: log.event(kind, _NOT_ROWS), compressed=compressed)
    site = Site(bytes(log.packets))
    while site.stream.progress().transactions < 20:
        await site.stream.read()
    with pytest.raises(NotUnderstood):
        await site.exhaust()
    assert len(site.changes) == 20
    assert (site.stream.position().file, site.stream.position().offset) == ("b.000001", end)


@pytest.mark.parametrize("compressed", [False, True])
async def test_what_came_before_an_event_on_which_loops_have_hung_is_given_first(compressed: bool) -> None:
    log = Binlog().begin_file()
    for number in range(1, 21):
        _transaction(log, number, compressed=compressed)
    log.gtid(21, 1_700_000_000_000_021)
    place = f"b.000001:{log.at}"
    log.event(40, payload(captured(log, lambda: log.query("BEGIN")))) if compressed else log.query("BEGIN")
    site = Site(bytes(log.packets), hung=place)
    while site.stream.progress().transactions < 20:
        await site.stream.read()
    with pytest.raises(NotUnderstood, match="hung"):
        await site.exhaust()
    assert len(site.changes) == 20


async def test_compressed_transactions_before_one_that_is_damaged_are_given_first() -> None:
    log = Binlog().begin_file()
    for number in range(1, 21):
        _transaction(log, number)
    log.gtid(21, 1_700_000_000_000_021)
    damaged = bytearray(payload(captured(log, lambda: log.query("BEGIN"), log.table)))
    damaged[-6] ^= 0x55
    log.event(40, bytes(damaged))
    site = Site(bytes(log.packets))
    while site.stream.progress().transactions < 20:
        await site.stream.read()
    with pytest.raises(NotUnderstood, match="can't be decompressed"):
        await site.exhaust()
    assert len(site.changes) == 20


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_snapshot_gets_its_turn_between_transactions_with_savepoints(compressed: bool) -> None:
    log = Binlog().begin_file()
    for number in range(1, 11):
        _transaction(log, number, lambda: log.query("SAVEPOINT `a`"), compressed=compressed)
    log.gtid(11, 1_700_000_000_000_100)  # what is received ends within a transaction
    site, turns = Site(bytes(log.packets), between=True), 0
    while site.stream.progress().transactions < 10:
        await site.stream.read()
        turns += not site.stream.in_transaction()
    assert turns == 10
