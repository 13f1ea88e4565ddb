"""Where an archive continues a position: only in the history that the position is of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.model import Position
from headrace.mysql.archive import finding
from headrace.mysql.archive.index import BinlogFile, Line
from headrace.mysql.archive.packets import Place
from headrace.mysql.events.gtid import GtidSet

US = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
HOUR = 3_600_000_000


def line(number: int, begun: int, *files: int, server: str = US, gtids: bool = False) -> Line:
    """Files of 1,000 bytes, by their numbers; each has ten transactions, of the hour in which it was begun."""
    made = [
        BinlogFile(
            f"b.{one:06d}", begun + one, f"{server}:1-{10 * one - 10}" if gtids and one > 1 else "", 1_000, index="x"
        )
        for one in files
    ]
    for file in made:
        file.first_us = file.last_us = file.begun * HOUR
    return Line(number, server, "9.7", False, gtids, 0, "a", made)


class Lines:
    """An archive of lines without content."""

    def __init__(self, *lines: Line) -> None:
        self.lines, self.store = list(lines), SimpleNamespace(place="there")

    async def refresh(self) -> None:
        pass

    async def executed(self, line: Line) -> GtidSet:
        return GtidSet(f"{line.server}:1-{10 * int(line.files[-1].name[2:])}")

    async def segments(self, file: BinlogFile) -> list[Any]:
        first = 10 * int(file.name[2:]) - 9
        return [SimpleNamespace(gtids=f"{US}:{first}-{first + 9}", last_us=file.last_us, end=1_000)]


async def found(*lines: Line, position: Position, purged: str = "") -> Place | str:
    archive: Any = Lines(*lines)
    return await finding.find_place(archive, position, US, purged=purged)


@pytest.fixture(autouse=True)
def transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at(archive: object, file: BinlogFile, offset: int) -> int:
        return file.begun * HOUR

    monkeypatch.setattr(finding, "transaction_at", at)


def at(file: int, offset: int, hour: int, **more: Any) -> Position:
    return Position(US, f"b.{file:06d}", offset, commit_time_us=hour * HOUR, **more)


async def test_a_file_of_before_a_reset_does_not_continue_a_position_where_the_present_one_ends() -> None:
    old, new = line(1, 0, 2, 3, 4), line(2, 0, 1, 2)
    new.files[1].begun += 1
    new.files[1].last_us = 3 * HOUR
    position = at(2, 1_000, 1, last_transaction="b.000001:900")
    assert await found(old, new, position=position) == "the archive at there ends at the position"
    behind = at(2, 500, 1, last_transaction="b.000001:900")
    assert await found(old, new, position=behind) == Place(2, "b.000002", 500)


async def test_a_destination_that_is_behind_a_reset_reads_the_rest_of_the_old_files() -> None:
    old, new = line(1, 0, 1, 2, 3), line(2, 100, 1, 2)
    position = at(2, 500, 2, last_transaction="b.000002:400")
    assert await found(old, new, position=position) == Place(1, "b.000002", 500)


async def test_a_file_that_ended_long_before_what_was_read_is_of_a_former_history() -> None:
    text = "the archive at there has another binlog under the name b.000002"
    assert await found(line(1, 0, 2, 3), position=at(2, 500, 50, last_transaction="b.000001:900")) == text
    place = Place(1, "b.000002", 500)
    assert await found(line(1, 0, 2, 3), position=at(2, 500, 1, last_transaction="b.000001:900")) == place


async def test_gtids_that_were_given_again_lead_into_no_former_history() -> None:
    old, new = line(1, 0, 1, 2, 3, 4, gtids=True), line(2, 100, 1, gtids=True)
    read = at(1, 1_000, 101, gtid_set=f"{US}:1-10", last_transaction="b.000001:900")
    lacks = "the archive at there ends at the position"
    assert await found(old, new, position=read, purged=f"{US}:1-30") == lacks
    other = at(9, 500, 2, gtid_set=f"{US}:1-10")
    assert isinstance(await found(old, new, position=other, purged=f"{US}:1-30"), str), "which of the two is unknown"
    later = at(9, 500, 90, gtid_set=f"{US}:1-10")
    assert isinstance(await found(old, position=later, purged=f"{US}:1-30"), str), "they are older than the position"
    place = await found(old, position=other, purged=f"{US}:1-30")
    assert isinstance(place, Place)
    assert (place.line, place.file) == (1, "b.000002")
