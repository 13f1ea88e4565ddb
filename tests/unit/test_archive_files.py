"""Binlog files into an archive and out of it again: byte for byte, from any event on, and as a server would send it."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.decode import printing_settings
from headrace.errors import ArchiveError, ContinuesElsewhere, HeadraceError, Refusal
from headrace.model import POS_SHIFT, OpenXa, Position, RowsChange
from headrace.mysql.archive import recorder as recorders
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.finding import find_place, same_as_source
from headrace.mysql.archive.index import segment_operation
from headrace.mysql.archive.packets import ArchivedPackets, Place
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.archive.sealing import Seal
from headrace.mysql.archive.store import FolderStore
from headrace.mysql.decode import read_archive
from headrace.mysql.events.cursor import WRAP
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.wire.binlog_file import packets, rotate_packet
from headrace.native import find
from headrace.ports.inspection import Captures, Output, Window
from headrace.settings.archive import ArchiveSettings
from tests.examples import examples
from tests.made_binlog import FULL, SID, Binlog, decoder, feed
from tests.random_tables import stream

RECORDED = sorted((Path(__file__).parent.parent / "fixtures" / "binlogs").glob("*.bin"))
MAGIC = b"\xfebin"
FIRST_US = 1_700_000_000_000_000
ways: dict[str, Any] = {"present": None}
"""Native code, or None, as the present test wants it."""


@pytest.fixture(autouse=True, params=["python", "native"])
def way(request: pytest.FixtureRequest) -> None:
    """Each test runs with Python alone and with native code."""
    ways["present"] = find("auto").module if request.param == "native" else None
    if request.param == "native":
        assert ways["present"] is not None


def made(transactions: int = 40, *, checksums: bool = True, large: int = 0, name: str = "b.000001") -> Binlog:
    """A file of transactions of one row; and an event of `large` bytes after the second."""
    log = Binlog(checksums=checksums).begin_file(name)
    for number in range(1, transactions + 1):
        log.transaction(number, FIRST_US + number, [(number, f"row {number}")])
        if large and number == 2:
            log.event(29, bytes(large - 19 - 4 * checksums))
    return log


def file_of(stream: bytes) -> bytes:
    """The file that these packets come from: the events that are at an offset."""
    whole, at, events = bytearray(), 0, list[bytes]()
    while at < len(stream):
        size = int.from_bytes(stream[at : at + 3], "little")
        whole += stream[at + 4 : at + 4 + size]
        at += 4 + size
        if size < 0xFFFFFF:
            events.append(bytes(whole[1:]))
            whole.clear()
    return MAGIC + b"".join(event for event in events if event[4] not in (4, 15, 27) or event[13:17] != bytes(4))


def recorded(
    stream: bytes, sizes: random.Random | None = None, *, file: str = "b.000001", checksums: bool = True
) -> Recorder:
    """A recorder that was fed with the packets, in pieces of random sizes."""
    recorder = Recorder(file, 4, checksums=checksums, source="the source", native=ways["present"])
    data, at = b"", 0
    while at < len(stream):
        size = len(stream) if sizes is None else sizes.choice((1, 3, 50, 1000, 1 << 20, 1 << 24))
        data += stream[at : at + size]
        at += size
        data = data[recorder.feed(data) :]
    assert not data
    return recorder


async def archived(
    folder: Path, *streams: bytes, key: bytes | None = None, closed: bool = True, server: str = "u"
) -> Archive:
    """An archive with a line of files, the packets of which are given; a further one if it has some."""
    archive = Archive(FolderStore(folder), Seal(key), native=ways["present"])
    await archive.journal.claim("test")
    of = archive.journal.index.next_number
    line = {"number": of, "server": server, "version": "9.7", "mariadb": False, "gtid_mode": True}
    operations: list[dict[str, Any]] = [{"op": "line", **line, "lower_case_table_names": 0, "address": "a"}]
    for number, packed in enumerate(streams, 1):
        name = f"b.{number:06d}"
        recorder = recorded(packed, file=name)
        frames, facts = recorder.take()
        operations.append({"op": "file", "name": name, "begun": recorder.begun, "gtids": recorder.gtids})
        start = 0
        for frame in frames:  # a segment each
            segment = await archive.add_segment(f"{of:04d}", name, start, [frame], facts)
            await archive.journal.append(*operations, segment_operation(segment))
            operations, start = [], segment.end
        if closed or number < len(streams):
            await archive.close_file()
    return archive


async def contents(archive: Archive) -> list[bytes]:
    return [b"".join([frame.data async for frame in archive.frames(file)]) for file in archive.lines[0].files]


async def dumped(archive: Archive, place: Place) -> bytes:
    """All packets from a place on."""
    stream, data = ArchivedPackets(archive, place, checksums=True), b""
    try:
        while True:
            data = await stream.read(data, len(data) + 1, 11.0)  # as with the default heartbeat
    except ContinuesElsewhere:
        return data
    finally:
        await stream.close()


def offsets(file: bytes) -> list[int]:
    """Where its events begin."""
    found, at = [], 4
    while at < len(file):
        found.append(at)
        at += struct.unpack_from("<I", file, at + 9)[0]
    return found


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.name)
def test_a_recorded_file_comes_out_as_it_was_however_its_bytes_arrive(file: Path) -> None:
    stream = b"".join(packets(file))
    for seed in range(20):
        frames, _ = recorded(stream, random.Random(seed)).take()
        assert b"".join(frames) == file.read_bytes()


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("large", [0, 17 << 20, FULL - 2, FULL - 1, FULL, 2 * FULL - 1])
def test_events_of_any_size_come_out_as_they_were(large: int, checksums: bool) -> None:
    log = made(4, checksums=checksums, large=large)
    recorder = recorded(bytes(log.packets), checksums=checksums)
    frames, facts = recorder.take()
    assert b"".join(frames) == file_of(bytes(log.packets))
    assert recorder.end == log.at
    assert (facts.first_us, facts.last_us) == (FIRST_US + 1, FIRST_US + 4)
    assert facts.gtid_text == f"{SID}:1-4"
    assert facts.tables is not None
    assert len(facts.tables) == 1


def outcome(data: bytes, native: Any, sizes: random.Random) -> tuple[Any, ...]:
    """What becomes of these packets: the file and its facts, and the error that ended it."""
    recorder = Recorder("b.000001", 4, checksums=True, source="the source", native=native)
    error, waiting, at = "", b"", 0
    try:
        while at < len(data) and not recorder.ended:
            size = sizes.choice((50, 1000, 1 << 20))
            waiting += data[at : at + size]
            at += size
            waiting = waiting[recorder.feed(waiting) :]
    except HeadraceError as failure:
        error = str(failure)
    whole = recorder.whole
    frames, facts = recorder.take()
    tables = None if facts.tables is None else sorted(facts.tables)
    found = (facts.first_us, facts.last_us, facts.gtid_text, tables, facts.last_event)
    return b"".join(frames), recorder.end, recorder.begun, recorder.gtids, found, whole, error


@pytest.mark.hypothesis
def test_random_binlogs_are_recorded_the_same_both_ways() -> None:
    native = find("auto").module
    for seed in range(examples(400)):
        rng = random.Random(seed)
        data = bytearray(stream(rng, mariadb=seed % 3 == 0, large=0.02))
        if seed % 2:
            for _ in range(rng.choice((1, 3))):
                data[rng.randrange(len(data))] = rng.choice((0, 1, 255, rng.randrange(256)))
        both = [outcome(bytes(data), one, random.Random(seed)) for one in (None, native)]
        assert both[0] == both[1], f"seed {seed}"


def test_a_damaged_event_is_not_archived() -> None:
    stream = bytearray(made().packets)
    stream[-40] ^= 1
    with pytest.raises(HeadraceError, match=r"CRC32 of an event of type .* is wrong, and it is not archived"):
        recorded(bytes(stream))


def test_bytes_that_the_server_left_out_are_noticed() -> None:
    log = made(2)
    log.at += 40  # as MariaDB does where a binlog is encrypted
    log.transaction(3, FIRST_US + 3, [(3, "c")])
    with pytest.raises(ArchiveError, match=r"can't be archived from b.000001:\d+ on: an event ends at"):
        recorded(bytes(log.packets))


def test_what_was_read_again_is_dropped() -> None:
    log = made()
    whole = file_of(bytes(log.packets))
    middle = offsets(whole)[20]
    recorder = Recorder("b.000001", 4, checksums=True, source="the source", skip_to=middle)
    recorder.feed(bytes(log.packets))
    frames, _ = recorder.take()
    assert b"".join(frames) == whole[middle:]


async def test_an_archive_gives_back_what_was_put_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "FRAME", 1000)
    logs = [bytes(made().packets), bytes(made(3, large=17 << 20, name="b.000002").packets)]
    archive = await archived(tmp_path, *logs)
    assert await contents(archive) == [file_of(log) for log in logs]
    other = Archive(FolderStore(tmp_path), Seal())
    await other.refresh()
    assert await contents(other) == [file_of(log) for log in logs]
    assert len(await other.segments(other.lines[0].files[0])) > 3


async def test_the_packets_of_an_archive_are_those_of_the_file(tmp_path: Path) -> None:
    log = made(5, large=17 << 20)
    file = tmp_path / "b.000001"
    file.write_bytes(file_of(bytes(log.packets)))
    archive = await archived(tmp_path / "archive", bytes(log.packets))
    wanted = rotate_packet("b.000001", 4, True) + b"".join(packets(file))
    assert await dumped(archive, Place(1, "b.000001", 4)) == wanted


async def test_reading_begins_at_any_event_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "FRAME", 1000)
    log = made()
    whole = file_of(bytes(log.packets))
    archive = await archived(tmp_path, bytes(log.packets), closed=False)
    for offset in offsets(whole):
        given = await dumped(archive, Place(1, "b.000001", offset))
        rest = recorded(given) if offset == 4 else Recorder("b.000001", offset, checksums=True, source="it")
        if offset > 4:
            rest.feed(given)
        assert b"".join(rest.take()[0]) == (whole if offset == 4 else whole[offset:])
    for offset in (offsets(whole)[5] + 1, offsets(whole)[30] - 1):
        with pytest.raises(ArchiveError, match=f"no event begins at b.000001:{offset}"):
            await dumped(archive, Place(1, "b.000001", offset))


async def test_transactions_are_passed_over_by_their_gtids(tmp_path: Path) -> None:
    archive = await archived(tmp_path, bytes(made(10).packets))
    without, only = GtidSet(f"{SID}:1-3:5"), GtidSet(f"{SID}:1-8")
    given = await dumped(archive, Place(1, "b.000001", 4, without=without, only=only))
    assert gtids(given) == f"{SID}:4:6-8"
    middle = offsets(file_of(bytes(made(10).packets)))
    until = next(at for at in middle if at > 1200)
    given = await dumped(archive, Place(1, "b.000001", 4, only=GtidSet(f"{SID}:1"), until=("b.000001", until)))
    assert gtids(given).startswith(f"{SID}:1:")
    assert gtids(given).endswith("-10")


def gtids(stream: bytes) -> str:
    """Those of the transactions in a stream with gaps."""
    found, at = GtidSet(), 0
    while at < len(stream):
        size = int.from_bytes(stream[at : at + 3], "little")
        if stream[at + 9] == 33:
            found.add(SID, struct.unpack_from("<Q", stream, at + 24 + 17)[0])
        at += 4 + size
    return str(found)


async def test_a_position_is_found_if_the_files_are_those_that_were_read(tmp_path: Path) -> None:
    log = made(10)
    file = file_of(bytes(log.packets))
    begins = [at for at in offsets(file) if file[at + 4] == 33]
    archive = await archived(tmp_path, bytes(log.packets))
    position = Position(
        "u", "b.000001", begins[4], commit_time_us=FIRST_US + 4, last_transaction=f"b.000001:{begins[3]}"
    )
    assert await find_place(archive, position, "u") == Place(1, "b.000001", begins[4])

    async def lacks(**changes: Any) -> str:
        found = await find_place(archive, replace(position, **changes), changes.get("server_uuid", "u"))
        assert isinstance(found, str)
        return found

    assert "has nothing of server v" in await lacks(server_uuid="v")
    assert f"goes from b.000001:4 to b.000001:{len(file)}" in await lacks(file="b.000002")
    assert f"goes from b.000001:4 to b.000001:{len(file)}" in await lacks(offset=len(file) + 1)
    assert "ends at the position" in await lacks(offset=len(file))
    assert "has another binlog under the name b.000001" in await lacks(commit_time_us=FIRST_US + 5)
    assert "has another binlog under the name b.000001" in await lacks(last_transaction=f"b.000001:{begins[3] + 1}")


async def test_the_archive_spares_the_source_only_where_both_give_the_same(tmp_path: Path) -> None:
    streams = [bytes(made(20, name=f"b.{number:06d}").packets) for number in (1, 2)]
    archive = await archived(tmp_path, *streams)
    first, second = (file_of(one) for one in streams)
    number, begin, end = archive.lines[0].number, offsets(first)[1], ("b.000002", len(second))
    there = Position("u", "b.000001", begin, gtid_set=f"{SID}:1-3")

    async def place(
        position: Position, *, line: int = number, at_least: int = 1, after: tuple[str, int] | None = None
    ) -> Place | None:
        return await same_as_source(archive, position, line, at_least, after)

    holes = replace(there, gtid_set=f"{SID}:1-20")  # the source would leave out what follows
    found = await place(replace(there, gtid_set=f"{SID}:100"))
    assert found is not None
    assert (found.file, found.offset, found.until) == ("b.000001", begin, ("b.000002", 4))
    assert await place(holes) is not None, "they are in the first segment, which is read by GTIDs"
    data = await dumped(archive, found)
    assert file_of(data) == MAGIC + first[begin:] + second[4:]
    rest = len(first) - begin + len(second)
    assert await place(there, at_least=rest) is not None
    for none in (
        place(there, at_least=rest + 1),
        place(there, after=end),
        place(there, line=number + 1),
        place(replace(there, server_uuid="another")),
        place(replace(there, offset=WRAP)),
        place(replace(there, gtid_set="")),
        place(replace(there, open_xa=(OpenXa("x", "b.000001", 4),))),
        place(replace(there, file="b.000003")),
    ):
        assert await none is None


async def test_what_another_server_has_purged_is_found_by_gtids(tmp_path: Path) -> None:
    archive = await archived(tmp_path, bytes(made(10).packets))
    position = Position("v", "", 4, f"{SID}:1-3")
    found = await find_place(archive, position, "v", purged=f"{SID}:1-6")
    assert isinstance(found, Place)
    assert gtids(await dumped(archive, found)) == f"{SID}:4-6"
    assert isinstance(await find_place(archive, position, "v", purged=f"{SID}:1-3"), str)
    assert isinstance(await find_place(archive, Position("v", "", 4, f"{SID}:1-10"), "v", purged=f"{SID}:1-20"), str)


async def test_of_a_server_that_does_not_answer_nothing_is_read_that_the_other_never_had(tmp_path: Path) -> None:
    log = made(10)
    file = file_of(bytes(log.packets))
    begins = [at for at in offsets(file) if file[at + 4] == 33]
    archive = await archived(tmp_path, bytes(log.packets))
    position = Position("u", "b.000001", begins[3], f"{SID}:1-3")
    found = await find_place(archive, position, "v", purged=f"{SID}:1-8")
    assert isinstance(found, Place)
    assert gtids(await dumped(archive, found)) == f"{SID}:4-8"


async def test_a_line_of_mariadb_is_passed_over_by_a_search_for_gtids_of_mysql(tmp_path: Path) -> None:
    archive = await archived(tmp_path, bytes(made().packets))
    archive.lines[0].gtid_mode, archive.lines[0].files[0].gtids = False, "0-1-5"
    assert isinstance(await find_place(archive, Position("v", "", 4, f"{SID}:1-3"), "v", purged=f"{SID}:1-8"), str)


async def test_several_tasks_may_refresh_an_archive_at_once(tmp_path: Path) -> None:
    logs = [bytes(made(5, name=f"b.{number:06d}").packets) for number in range(1, 7)]
    await archived(tmp_path, *logs)
    for _ in range(20):
        reader = Archive(FolderStore(tmp_path), Seal(), native=ways["present"])
        await asyncio.gather(*(reader.refresh() for _ in range(3)))
        assert await contents(reader) == [file_of(log) for log in logs]


async def test_rows_of_prepared_transactions_are_read_again(tmp_path: Path) -> None:
    log = made(10)
    file = file_of(bytes(log.packets))
    begins = [at for at in offsets(file) if file[at + 4] == 33]
    archive = await archived(tmp_path, bytes(log.packets))
    xa = OpenXa("1:a:", "b.000001", begins[1], f"{SID}:2")
    position = Position("u", "b.000001", begins[6], f"{SID}:1-6", open_xa=(xa,))
    found = await find_place(archive, position, "u")
    assert isinstance(found, Place)
    assert gtids(await dumped(archive, found)) == f"{SID}:2:7-10"
    older = replace(position, open_xa=(replace(xa, file="a.000009"),))
    lacks = await find_place(archive, older, "u")
    assert isinstance(lacks, str)
    assert "lacks rows of XA transactions" in lacks


async def test_damage_is_named_and_nothing_of_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "FRAME", 1000)
    archive = await archived(tmp_path, bytes(made().packets))
    segments = await archive.segments(archive.lines[0].files[0])
    assert [await archive.verify_segment(one) for one in segments] == [""] * len(segments)
    file = tmp_path / segments[2].object
    sound = file.read_bytes()
    for damaged in (sound[:-1], sound[:50] + bytes([sound[50] ^ 8]) + sound[51:], b"", segments[1].object.encode()):
        file.write_bytes(damaged)
        assert segments[2].object in await archive.verify_segment(segments[2])
        with pytest.raises(ArchiveError, match=f"{segments[2].object} of the archive is damaged"):
            await dumped(archive, Place(1, "b.000001", 4))
    file.unlink()
    assert "is missing in the archive" in await archive.verify_segment(segments[2])
    with pytest.raises(ArchiveError, match="is missing in the archive"):
        await dumped(archive, Place(1, "b.000001", 4))


async def test_encrypted_segments_need_their_key_and_their_place(tmp_path: Path) -> None:
    log = bytes(made().packets)
    archive = await archived(tmp_path, log, key=b"k" * 32)
    assert await contents(archive) == [file_of(log)]
    (segment,) = await archive.segments(archive.lines[0].files[0])
    assert b"row" not in (tmp_path / segment.object).read_bytes()
    with pytest.raises(ArchiveError, match="can't be decrypted"):
        archive._unpacked("0001/other", 0, segment.end, (tmp_path / segment.object).read_bytes())


async def test_an_overtaken_writer_deletes_nothing_of_its_successor(tmp_path: Path) -> None:
    first = await archived(tmp_path, bytes(made().packets), closed=False)
    second = Archive(FolderStore(tmp_path), Seal())
    await second.journal.claim("second")
    facts = recorded(bytes(made().packets)).take()[1]
    segment = await second.add_segment("0001", "b.000001", second.lines[0].files[0].size, [b"more"], facts)
    await first.delete_unused()
    await second.journal.append(segment_operation(segment))
    assert await second.verify_segment(segment) == ""
    left = await second.add_segment("0001", "b.000001", segment.end, [b"never entered"], facts)
    third = Archive(FolderStore(tmp_path), Seal())
    await third.journal.claim("third")
    await third.delete_unused()
    assert not (tmp_path / left.object).exists()
    assert await third.verify_segment(segment) == ""


def without_names(gno: int, name: str = "b.000001", statement: str = "", at_us: int = FIRST_US) -> Binlog:
    """A file with a row of a table whose names of columns it does not have."""
    log = Binlog().begin_file(name)
    log.gtid(gno, at_us + gno)
    if statement:
        log.query(statement)
        log.gtid(gno + 1, at_us + gno + 1)
    log.query("BEGIN")
    log.table(named=False)
    log.insert((gno, "row"))
    log.event(16, struct.pack("<Q", gno))
    return log


async def decode(folder: Path, entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that come of an archive with these entries of the schema history."""
    rows = list[dict[str, Any]]()

    class Rows(Output):
        def emit(self, change: RowsChange) -> None:
            names = [column.name for column in change.schema.columns]
            rows.extend(dict(zip(names, row, strict=True)) for row in change.rows)

    everything: Captures = lambda *_: True  # noqa: E731
    settings = printing_settings(include="shop.t")
    await read_archive(settings, ArchiveSettings(path=folder), entries, everything, folder, Window(), Rows())
    return rows


async def test_what_is_read_again_is_of_the_server_that_wrote_it(tmp_path: Path) -> None:
    await archived(tmp_path, bytes(without_names(1).packets), bytes(without_names(3, "b.000002").packets))
    await archived(tmp_path, bytes(without_names(9).packets), server="v")
    servers = list[str]()

    class Servers(Output):
        def begin(self, server: str) -> None:
            servers.append(server)

    nothing: Captures = lambda *_: False  # noqa: E731
    settings, place = printing_settings(include="shop.t"), ArchiveSettings(path=tmp_path)
    rest = list[str]()
    for first in (None, ("b.000002", 4), ("b.000001", 4)):
        rest.append(await read_archive(settings, place, [], nothing, tmp_path, Window((), first), Servers()))
    assert servers == ["u", "u", "v"]
    assert ["in line 2, which is not read: it begins with b.000001 of server v" in one for one in rest[:2]] == [
        True
    ] * 2
    assert rest[2] == ""
    for window in (Window((), ("b.000002", 4), ("b.000001", 9)), Window((), 7, 7)):
        with pytest.raises(Refusal, match="--to is not after --from"):
            await read_archive(settings, place, [], nothing, tmp_path, window, Servers())


async def test_an_archived_table_that_no_history_describes_is_refused_with_the_remedy_that_decode_has(
    tmp_path: Path,
) -> None:
    await archived(tmp_path, bytes(without_names(1).packets))
    with pytest.raises(HeadraceError, match=r"stored schema history does not have the table.* --table") as caught:
        await decode(tmp_path, [])
    assert "--schema" not in str(caught.value), "it is for files"


async def test_a_first_file_without_a_transaction_has_the_tables_of_its_time(tmp_path: Path) -> None:
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    statement = "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40)) CHARSET utf8mb4"
    before = without_names(1, statement=statement, at_us=FIRST_US - 1000)
    feed(decoder([], history=history), bytes(before.packets))
    entries = history.take_entries(FIRST_US - 500 << POS_SHIFT)
    empty, second = Binlog().begin_file(), without_names(10, "b.000002")
    await archived(tmp_path, bytes(empty.packets), bytes(second.packets))
    assert await decode(tmp_path, entries) == [{"id": 10, "name": "row"}]


async def test_a_dump_does_not_end_if_another_task_has_just_found_that_the_archive_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, whole = file_of(bytes(made(10).packets)), file_of(bytes(made(20).packets))
    writer = await archived(tmp_path, bytes(made(10).packets), closed=False)
    reader = Archive(FolderStore(tmp_path), Seal(None), native=ways["present"])
    await reader.refresh()
    refresh, grown = Archive.refresh, False

    async def refreshed(archive: Archive) -> bool:
        """Before the dump asks, the archive grows, and another task asks."""
        nonlocal grown
        if archive is reader and not grown:
            grown = True
            segment = await writer.add_segment("0001", "b.000001", len(part), [whole[len(part) :]], recorders.Facts())
            await writer.journal.append(segment_operation(segment))
            assert await refresh(reader)
        return await refresh(archive)

    monkeypatch.setattr(Archive, "refresh", refreshed)
    assert file_of(await dumped(reader, Place(1, "b.000001", 4))) == whole
