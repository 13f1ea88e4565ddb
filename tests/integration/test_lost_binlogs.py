"""Binlogs that are purged, removed, cut off or damaged under a destination: what the daemon says, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from tests.lost import GTIDS, KINDS, MARIADB, PLAIN, LostPlace, start_server
from tests.support import DaemonProcess

pytestmark = pytest.mark.server


BY_OFFSET = pytest.mark.parametrize("server", [pytest.param(PLAIN, marks=pytest.mark.long), MARIADB], indirect=True)
"""With GTIDs the offset is not used."""


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[tuple[Any, str]]:
    running = start_server(stack, request.param, "binlogs")
    yield running, request.param
    running.kill()


@pytest.fixture
def place(
    request: pytest.FixtureRequest, server: tuple[Any, str], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> LostPlace:
    return LostPlace(*server, f"lost{abs(hash(request.node.name)) % 10**8}", daemon, tmp_path / "out.jsonl")


def test_binlogs_purged_under_a_stopped_destination(place: LostPlace) -> None:
    position = place.published(1, 2)
    place.insert(3)
    gone = place.next_file()
    place.insert(4)
    place.purge()
    if place.kind == GTIDS:
        status = place.stands("POSITION_LOST", "gtids_purged", "has purged 1 transactions", "not read yet")
    else:
        status = place.stands("POSITION_LOST", "position_purged", "no longer has", gone)
    assert position.file == gone
    assert status["position"]["offset"] == position.offset
    place.choose("earliest")  # row 3 is in no binlog any more: that is what the operator gives up
    place.wait_ids(1, 2, 4)
    place.daemon.wait("shop", lambda s: s["state"] == "STREAMING" and s["lost"] == "")
    place.insert(5)
    place.wait_ids(1, 2, 4, 5)
    place.leave()


def test_a_binlog_removed_from_the_disk_and_put_back(place: LostPlace) -> None:
    position = place.published(1, 2)
    place.insert(3)
    place.next_file()
    place.insert(4)
    removed, kept = place.path(position.file), place.path(f"{position.file}.kept")
    removed.rename(kept)
    place.stands("POSITION_LOST", "position_purged", position.file, "removed from the disk", "back")
    kept.rename(removed)
    place.try_now()
    place.wait_ids(1, 2, 3, 4)
    place.daemon.wait_state("shop", "STREAMING")
    if place.kind == GTIDS:
        a_cut_dump_is_begun_again(place, 1, 2, 3, 4)
    place.leave()


def a_cut_dump_is_begun_again(place: LostPlace, *ids: int) -> None:
    """Without a new run, once a dump has lasted for ten seconds; the loss that is over does not come back."""
    before = place.daemon.wait("shop", lambda seen: seen["state"] == "STREAMING" and seen["state_seconds"] > 10.5)
    for (number,) in place.run("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"):
        place.run(f"KILL {number}")
    place.insert(max(ids) + 1)
    place.wait_ids(*ids, max(ids) + 1)
    assert place.daemon.health()[1]["destinations"]["shop"]["restarts"] == before["restarts"]
    assert '"the dump is begun again"' in place.daemon.log.read_text()


def test_a_binlog_that_is_cut_off_in_the_middle_of_an_event(place: LostPlace) -> None:
    place.published(1)
    place.insert(2, 3)
    cut = place.next_file()
    place.insert(4)
    start, end = place.row_event(cut, -1)
    with place.path(cut).open("r+b") as file:
        file.truncate(end - 10)
    status = place_cut(place, cut, start)
    assert status["position"]["file"] == cut
    place.choose("next-file")  # row 3 is cut off
    place.wait_ids(1, 2, 4)
    place.leave()


def place_cut(place: LostPlace, cut: str, start: int) -> dict[str, Any]:
    """Row 2 is published before the file ends, so the position may move up to the cut, and not beyond."""
    before = place.stored()
    place.daemon.start()
    status = place.daemon.wait_state("shop", "POSITION_LOST")
    assert status["lost"] == "truncated"
    assert f"ends in the middle of the event at {cut}:{start}" in status["last_error"], status["last_error"]
    assert "next-file" in status["last_error"]
    assert place.daemon.health()[0] == 503
    assert place.metric('headrace_state{destination="shop",state="POSITION_LOST"}') == 1
    assert before.offset < place.stored().offset < start
    place.wait_ids(1, 2)
    return status


def test_damaged_bytes_of_a_row_stop_with_their_place(place: LostPlace) -> None:
    place.published(1)
    place.insert(2, 3, 4)
    file = place.next_file()
    place.insert(5)
    start, end = place.row_event(file, 2)
    whole = place.path(file).read_bytes()
    with place.path(file).open("r+b") as binlog:
        binlog.seek(end - 60)
        binlog.write(b"\xee" * 8)
    place.daemon.start()
    # It is read once more before the source is to blame.
    status = place.daemon.wait("shop", lambda s: s["state"] == "FAILED" and "mysqlbinlog" in s["last_error"])
    assert f"{file}:{start}: the CRC32 of an event" in status["last_error"]
    assert status["lost"] == ""
    assert place.ids() in ([1], [1, 2])
    assert place.metric('headrace_state{destination="shop",state="FAILED"}') == 1
    assert place.stored().offset < start
    place.path(file).write_bytes(whole)  # as from a replica's copy
    place.try_now()
    place.wait_ids(1, 2, 3, 4, 5)
    place.leave()


@pytest.mark.parametrize(
    ("length", "words"), [(5, "bogus data"), (0x7FFFFFFF, "max_allowed_packet")], ids=["too short", "too long"]
)
def test_a_damaged_length_of_an_event_stops_with_its_place(place: LostPlace, length: int, words: str) -> None:
    place.published(1)
    place.insert(2, 3)
    file = place.next_file()
    start, _ = place.row_event(file, 2)
    whole = place.path(file).read_bytes()
    with place.path(file).open("r+b") as binlog:
        binlog.seek(start + 9)
        binlog.write(length.to_bytes(4, "little"))
    place.daemon.start()
    status = place.daemon.wait_state("shop", "FAILED")
    assert f"damaged at {file}:{start}" in status["last_error"], status["last_error"]
    assert words in status["last_error"]
    place.wait_ids(1, 2)
    place.path(file).write_bytes(whole)
    place.try_now()
    place.wait_ids(1, 2, 3)
    place.leave()


@BY_OFFSET
@pytest.mark.parametrize("inside", [7, 20, 35])
def test_an_offset_in_the_middle_of_an_event_is_no_position(place: LostPlace, inside: int) -> None:
    right = place.published(1)
    place.insert(2, 3)
    start, _ = place.row_event(right.file, 1)
    place.store(replace(right, offset=start + inside))
    status = place.stands("POSITION_LOST", "truncated", f"{right.file}:{start + inside}")
    assert "position is wrong" in status["last_error"] or "in the middle of an event" in status["last_error"]
    place.choose(f"{right.file}:{right.offset}")
    place.wait_ids(1, 2, 3)
    place.leave()


@BY_OFFSET
def test_a_position_beyond_the_end_of_its_file(place: LostPlace) -> None:
    right = place.published(1)
    place.insert(2)
    place.store(replace(right, offset=right.offset + 1_000_000))
    place.stands("POSITION_LOST", "beyond_end", right.file)
    place.choose(f"{right.file}:{right.offset}")
    place.wait_ids(1, 2)
    place.leave()


@pytest.mark.parametrize("server", [PLAIN], indirect=True)  # one kind shows it
def test_a_truncated_file_is_not_skipped_by_the_policy_that_only_fails(place: LostPlace) -> None:
    """Once more after a restart of the daemon: the state is found again, and nothing has moved."""
    place.published(1)
    place.insert(2)
    cut = place.next_file()
    place.insert(3)
    _, end = place.row_event(cut, -1)
    with place.path(cut).open("r+b") as file:
        file.truncate(end - 10)
    place.stands("POSITION_LOST", "truncated", cut)
    place.leave()
    place.stands("POSITION_LOST", "truncated", cut)
    place.leave()
