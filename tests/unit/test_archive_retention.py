"""Which files of an archive may be deleted: the oldest, and none that a destination needs."""

from __future__ import annotations

from headrace.model import OpenXa, Position
from headrace.mysql.archive.index import BinlogFile, Index, Line
from headrace.mysql.archive.retention import superfluous

HOUR = 3_600_000_000


def line(number: int, server: str, first: int, count: int) -> Line:
    """Files of 100 bytes; the last transaction of file n was committed in hour n."""
    files = [
        BinlogFile(f"b.{n:06d}", size=500, stored=100, first_us=n * HOUR - 5, last_us=n * HOUR, index="x")
        for n in range(first, first + count)
    ]
    return Line(number, server, "9.7", False, True, 0, "a", files)


def deleted(index: Index, *needed: Position, keep: float = 0, keep_bytes: int = 0, now: int = 10) -> list[str]:
    found = superfluous(index, keep, keep_bytes, needed, now * HOUR)
    return [f"{line.number}/{file.name[-1]}" for line, files in found for file in files]


def at(server: str, number: int, hour: int, **more: object) -> Position:
    return Position(server, f"b.{number:06d}", 4, commit_time_us=hour * HOUR, **more)  # type: ignore[arg-type]


def test_old_files_are_deleted_but_not_the_one_that_grows() -> None:
    index = Index(lines=[line(1, "u", 1, 4)])
    assert deleted(index, keep=8.5 * 3600) == ["1/1"]
    assert deleted(index, keep=3600) == ["1/1", "1/2", "1/3"]
    assert deleted(index) == []


def test_the_oldest_files_are_deleted_until_the_rest_is_small_enough() -> None:
    index = Index(lines=[line(1, "u", 1, 4), line(2, "u", 7, 2)])
    assert deleted(index, keep_bytes=600) == []
    assert deleted(index, keep_bytes=450) == ["1/1", "1/2"]
    assert deleted(index, keep_bytes=1) == ["1/1", "1/2", "1/3", "1/4", "2/7"]


def test_what_a_destination_needs_stays() -> None:
    index = Index(lines=[line(1, "u", 1, 4)])
    assert deleted(index, at("u", 3, 2), keep=1) == ["1/1", "1/2"]
    assert deleted(index, at("u", 3, 2), at("u", 2, 1), keep=1) == ["1/1"]
    xa = OpenXa("1:a:", "b.000001", 4)
    assert deleted(index, at("u", 3, 2, open_xa=(xa,)), keep=1) == []


def test_files_of_another_server_stay_while_they_have_later_transactions() -> None:
    index = Index(lines=[line(1, "u", 1, 4), line(2, "v", 1, 2)])
    assert deleted(index, at("v", 1, 2), keep=1) == ["1/1", "1/2"]


def test_a_line_keeps_no_gap() -> None:
    index = Index(lines=[line(1, "u", 1, 4)])
    index.lines[0].files[1].last_us = 20 * HOUR  # clocks may go back
    assert deleted(index, keep=3600) == ["1/1"]


def test_after_a_reset_files_of_the_old_history_are_not_needed_and_those_of_the_new_one_are() -> None:
    index = Index(lines=[line(1, "u", 1, 6), line(2, "u", 1, 4)])
    for file in index.lines[1].files:  # committed after the reset, under the names of before
        file.first_us, file.last_us = file.first_us + 6 * HOUR, file.last_us + 6 * HOUR
    position = at("u", 3, 8)
    assert deleted(index, position, keep=1, now=20) == [f"1/{n}" for n in range(1, 7)] + ["2/1", "2/2"]
    before = at("u", 3, 2)
    assert deleted(index, before, keep=1, now=20) == ["1/1", "1/2"]
