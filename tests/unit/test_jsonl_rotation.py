"""Rotation of the jsonl sink: names, sizes, how many are kept, and what a crash leaves."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.adapters.jsonl.file import LineFile
from headrace.adapters.jsonl.sink import JsonlSink
from headrace.errors import LeaseLapsed, SinkError, SinkRejected
from headrace.lease import Lease
from tests.jsonl import batch, rotated, whole


async def sink_of(path: Path, **rotation: Any) -> JsonlSink:
    sink = JsonlSink(str(path), Lease(), **rotation)
    await sink.start()
    return sink


def line_file(path: Path, clock: list[float], **rotation: Any) -> LineFile:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
    file = LineFile(str(path), descriptor, **rotation, clock=lambda: clock[0])
    file.begin()
    return file


def allow() -> None: ...


# -- sizes ------------------------------------------------------------------------------------------------------------


async def test_no_file_becomes_larger_than_asked_and_no_line_spans_two(tmp_path: Path) -> None:
    path, made, random = tmp_path / "out.jsonl", b"", Random(7)
    sink = await sink_of(path, rotate_bytes=1000)
    for _ in range(40):
        values = [b"%d" % random.randrange(10**9) * random.randrange(1, 20) for _ in range(random.randrange(1, 30))]
        made += b"".join(value + b"\n" for value in values)
        await sink.publish(batch(*values))
    await sink.close()
    files = [*rotated(path), path]
    assert whole(path) == made
    assert len(files) > 20
    assert all(file.stat().st_size <= 1000 for file in files)
    assert all(file.read_bytes().endswith(b"\n") for file in files)


async def test_a_line_larger_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sink = await sink_of(path, rotate_bytes=100)
    await sink.publish(batch(b"a" * 10, b"b" * 500, b"c" * 10))
    await sink.close()
    assert [file.stat().st_size for file in [*rotated(path), path]] == [11, 501, 11]


# -- names ------------------------------------------------------------------------------------------------------------


def test_names_sort_in_order_when_the_clock_steps_back(tmp_path: Path) -> None:
    path, clock = tmp_path / "out.jsonl", [1_800_000_000.0]
    file = line_file(path, clock, rotate_bytes=2)
    for number, step in enumerate((0, 0, -5000, 1, -90_000, 0, 200_000, 0)):
        clock[0] += step
        file.write(b"%d\n" % number, allow)
    file.close()
    assert whole(path) == b"".join(b"%d\n" % number for number in range(8))
    assert all(re.fullmatch(r"out-[0-9]{8}T[0-9]{6}Z-[0-9]{6}\.jsonl", one.name) for one in rotated(path))
    clock[0] = 1_000_000_000.0
    file = line_file(path, clock, rotate_bytes=2)
    file.write(b"8\n", allow)
    file.close()
    assert whole(path) == b"".join(b"%d\n" % number for number in range(9))


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    path, clock = tmp_path / "out.jsonl", [1_800_000_000.0]
    file = line_file(path, clock, rotate_bytes=2)
    stranger = tmp_path / "out-20270115T080000Z-000001.jsonl"
    stranger.write_bytes(b"mine")
    file.write(b"1\n", allow)
    file.write(b"2\n", allow)
    file.close()
    assert stranger.read_bytes() == b"mine"
    assert [one.name for one in rotated(path)][1:] == ["out-20270115T080000Z-000002.jsonl"]


def test_a_link_s_own_file_is_rotated_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "out.jsonl"
    link.symlink_to(tmp_path / "real" / "file.jsonl")

    async def run() -> None:
        sink = await sink_of(link, rotate_bytes=2)
        await sink.publish(batch(b"1", b"2"))
        await sink.close()

    asyncio.run(run())
    assert link.is_symlink()
    assert whole(tmp_path / "real" / "file.jsonl") == b"1\n2\n"


# -- how many are kept ------------------------------------------------------------------------------------------------


async def test_only_the_newest_files_are_kept_and_others_are_no_business_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    strangers = ["out-1.jsonl", "out-20260101T000000Z-000001.txt", "other-20200101T000000Z-000001.jsonl"]
    for name in strangers:
        (tmp_path / name).write_bytes(b"keep me")
    sink = await sink_of(path, rotate_bytes=2, keep_files=3)
    for number in range(10):
        await sink.publish(batch(b"%d" % number))

    def ours() -> list[Path]:
        return [one for one in rotated(path) if one.name not in strangers]

    await sink.close()
    assert [one.read_bytes() for one in ours()] == [b"6\n", b"7\n", b"8\n"]
    assert all((tmp_path / name).read_bytes() == b"keep me" for name in strangers)


async def test_what_a_crash_left_to_be_removed_goes_at_the_next_start(tmp_path: Path) -> None:
    path, names = tmp_path / "out.jsonl", [f"out-20260101T000000Z-{n:06}.jsonl" for n in range(1, 5)]
    for name in names:
        (tmp_path / name).write_bytes(b"1\n")
    sink = await sink_of(path, rotate_bytes=1000, keep_files=2)
    await sink.close()
    assert [one.name for one in rotated(path)] == names[2:]


async def test_a_file_that_can_t_be_removed_stops_no_row(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    (tmp_path / "out-20200101T000000Z-000001.jsonl").mkdir()
    sink = await sink_of(path, rotate_bytes=2, keep_files=1)
    await sink.publish(batch(b"1", b"2", b"3"))
    await sink.close()
    assert b"".join(one.read_bytes() for one in [*rotated(path)[1:], path]) == b"1\n2\n3\n"


# -- what is on the disk ----------------------------------------------------------------------------------------------


async def test_a_whole_line_without_an_end_is_kept_and_half_a_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for content, left in ((b'{"a":1}', b'{"a":1}\n'), (b'{"a":1}\n{"b":"' + b"x" * 200_000, b'{"a":1}\n'), (b"", b"")):
        path.write_bytes(content)
        sink = await sink_of(path)
        await sink.publish(batch(b"2"))
        await sink.close()
        assert path.read_bytes() == left + b"2\n"


async def test_a_full_disk_ends_the_sink_and_tears_no_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sink = await sink_of(path)
    await sink.publish(batch(b"a" * 50_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(SinkError, match="can't be written: File too large"):
            await sink.publish(batch(*[b"b" * 50_000] * 10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await sink.abort()
    assert path.read_bytes() == b"a" * 50_000 + b"\n"
    sink = await sink_of(path)
    await sink.publish(batch(b"c"))
    await sink.close()
    assert path.read_bytes().endswith(b"a\nc\n")


async def test_lines_go_on_in_a_new_file_when_ours_was_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sink = await sink_of(path)
    await sink.publish(batch(b"1"))
    path.rename(tmp_path / "taken")
    await sink.publish(batch(b"2"))
    path.rename(tmp_path / "taken again")
    path.touch(0o600)  # as logrotate's "create" does
    await sink.publish(batch(b"3"))
    await sink.close()
    assert ((tmp_path / "taken").read_bytes(), (tmp_path / "taken again").read_bytes()) == (b"1\n", b"2\n")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"3\n", 0o600)


def test_a_file_that_is_removed_while_it_is_written_confirms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    file = line_file(path, [0.0])
    with pytest.raises(SinkError, match="was removed"):
        file.write(b"1\n", path.unlink)
    file.close()


async def test_nothing_is_written_after_the_lease_has_lapsed(tmp_path: Path) -> None:
    path, now = tmp_path / "out.jsonl", [0.0]
    lease = Lease(10.0, monotonic=lambda: now[0], wall=lambda: now[0])
    lease.prove(0.0)
    sink = JsonlSink(str(path), lease, rotate_bytes=2)
    await sink.start()
    await sink.publish(batch(b"1"))
    now[0] = 20.0
    with pytest.raises(LeaseLapsed):
        await sink.publish(batch(b"2"))
    await sink.abort()
    assert whole(path) == b"1\n"


async def test_what_is_no_file_can_t_be_rotated(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    sink = JsonlSink(str(tmp_path / "fifo"), Lease(), rotate_bytes=1000)
    with pytest.raises(SinkRejected, match="no regular file"):
        await sink.start()
    await sink.abort()


def test_no_row_is_lost_or_torn_by_kills_in_the_middle_of_rotations(tmp_path: Path) -> None:
    path, confirmed, random = tmp_path / "out.jsonl", tmp_path / "confirmed", Random(5)

    def done() -> int:
        return int(confirmed.read_text()) + 1 if confirmed.exists() else 0

    for _ in range(12):
        words = [sys.executable, "-m", "tests.jsonl", str(path), str(confirmed)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while process.stdout.readline() != b"started\n":  # before it, warnings about half a line
                assert process.poll() is None
            wanted = done() + random.randrange(85, 250)
            while done() < wanted:
                assert process.poll() is None
            time.sleep(random.uniform(0, 0.01))
            process.kill()
    count = done()

    async def fix() -> None:
        sink = await sink_of(path, rotate_bytes=30_000)
        await sink.close()

    asyncio.run(fix())
    numbers = [json.loads(line)["n"] for line in whole(path).splitlines()]
    seen: dict[int, None] = dict.fromkeys(numbers)
    assert list(seen)[:count] == list(range(count)), "each row, and in order"
    assert all(
        after - before == 1 or (after <= before and after % 40 == 0) for before, after in itertools.pairwise(numbers)
    )
    assert len(rotated(path)) > 12
    assert count > 1000
