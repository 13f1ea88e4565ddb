"""The files of a jsonl sink read back while a daemon writes: rotated ones, and halves of lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.adapters.jsonl.replay import JsonlReplay
from headrace.adapters.jsonl.settings import JsonlSinkSettings
from headrace.errors import SinkError


async def lines(replay: JsonlReplay) -> list[bytes | None]:
    return [one.value async for block in replay.read() for one in block]


def write(out: Path, data: bytes) -> None:
    with out.open("ab") as file:
        file.write(data)


def rotate(out: Path, day: int) -> None:
    out.rename(out.parent / f"out-2026010{day}T000000Z-000001.jsonl")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def replay(out: Path) -> JsonlReplay:
    return JsonlReplay(JsonlSinkSettings(type="jsonl", path=str(out)))


async def test_a_file_that_is_rotated_between_two_readings_is_read_on_where_it_was_left(
    out: Path, replay: JsonlReplay
) -> None:
    write(out, b"1\n2\n")
    rotate(out, 1)
    write(out, b"3\n4")
    assert await lines(replay) == [b"1", b"2", b"3"]
    write(out, b"4\n5\n")
    rotate(out, 2)
    write(out, b"6\n")
    assert await lines(replay) == [b"44", b"5", b"6"]
    assert await lines(replay) == []


async def test_a_file_that_is_rotated_within_a_reading_is_read_to_its_end_before_the_next(
    out: Path, replay: JsonlReplay
) -> None:
    wide = b"x" * (5 << 20)
    write(out, b"1\n" + wide + b"\n2\n")
    found = []
    async for block in replay.read():
        found += [one.value for one in block]
        if len(found) == 1:
            rotate(out, 1)
            write(out, b"3\n")
    assert found == [b"1", wide, b"2"]
    assert await lines(replay) == [b"3"]


async def test_it_says_which_part_of_what_is_there_it_has_given(out: Path, replay: JsonlReplay) -> None:
    wide = b"x" * (4 << 20)
    for day in (1, 2):
        write(out, wide[:-1] + b"\n")
        rotate(out, day)
    write(out, wide[:-1] + b"\n")
    assert replay.share() is None
    assert [round(replay.share() or 0, 2) async for _ in replay.read()] == [0.33, 0.67, 1.0]
    write(out, wide[:-1] + b"\n")
    assert [replay.share() async for _ in replay.read()] == [1.0], "of what came since then"
    assert await lines(replay) == []
    assert replay.share() is None


async def test_a_file_that_is_not_there_is_an_error_in_words(replay: JsonlReplay) -> None:
    with pytest.raises(SinkError, match="nothing was published yet"):
        await lines(replay)
