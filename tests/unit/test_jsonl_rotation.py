"""Rotation of the jsonl sink: names, sizes, times, compression, and what a crash leaves."""

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
from typing import Any, Literal

import pytest

from headrace.adapters.jsonl import rotation as jsonl_rotated
from headrace.adapters.jsonl.file import LineFile
from headrace.adapters.jsonl.rotation import Housekeeper, RotatedFiles, Rotation
from headrace.adapters.jsonl.sink import JsonlSink
from headrace.errors import LeaseLapsed, SinkError, SinkRejected
from headrace.lease import Lease
from tests.jsonl import batch, rotated, unpacked, whole

Compression = Literal["gzip", "zstd"]


async def sink_of(path: Path, **rotation: Any) -> JsonlSink:
    sink = JsonlSink(str(path), Lease(), Rotation(**rotation))
    await sink.start()
    return sink


def line_file(path: Path, clock: list[float], **rotation: Any) -> LineFile:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
    file = LineFile(str(path), descriptor, Rotation(**rotation), lambda: clock[0])
    file.begin()
    return file


def allow() -> None: ...


async def until(condition: Any, limit: float = 10) -> None:
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


# -- when -------------------------------------------------------------------------------------------------------------


async def test_no_file_becomes_larger_than_asked_and_no_line_spans_two(tmp_path: Path) -> None:
    path, made, random = tmp_path / "out.jsonl", b"", Random(7)
    sink = await sink_of(path, bytes=1000)
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
    sink = await sink_of(path, bytes=100)
    await sink.publish(batch(b"a" * 10, b"b" * 500, b"c" * 10))
    await sink.close()
    assert [file.stat().st_size for file in [*rotated(path), path]] == [11, 501, 11]


def test_a_file_has_lines_of_one_period_only(tmp_path: Path) -> None:
    path, clock = tmp_path / "out.jsonl", [7200.0]
    file = line_file(path, clock, after=3600)
    for clock[0] in (7200.0, 10799.0, 10800.0, 14400.0):
        file.write(b"%d\n" % clock[0], allow)
    file.rotate_if_due()
    clock[0] = 18000.0
    assert file.next_period == 3600
    file.rotate_if_due()
    file.rotate_if_due()
    file.close()
    assert [one.read_bytes() for one in rotated(path)] == [b"7200\n10799\n", b"10800\n", b"14400\n"]
    assert path.read_bytes() == b""


def test_the_period_counts_across_a_restart(tmp_path: Path) -> None:
    path, clock = tmp_path / "out.jsonl", [7200.0]
    path.write_bytes(b"old\n")
    os.utime(path, (7100, 7100))
    file = line_file(path, clock, after=3600)
    file.write(b"new\n", allow)
    file.close()
    assert [one.read_bytes() for one in rotated(path)] == [b"old\n"]
    os.utime(path, (7300, 7300))
    file = line_file(path, clock, after=3600)
    file.write(b"same\n", allow)
    file.close()
    assert path.read_bytes() == b"new\nsame\n"


async def test_a_file_is_rotated_on_time_though_no_line_comes(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    sink = await sink_of(path, after=0.3)
    await sink.publish(batch(b"1"))
    await until(lambda: rotated(path))
    await sink.close()
    assert (whole(path), path.read_bytes()) == (b"1\n", b"")


# -- names ------------------------------------------------------------------------------------------------------------


def test_names_sort_in_order_when_the_clock_steps_back(tmp_path: Path) -> None:
    path, clock = tmp_path / "out.jsonl", [1_800_000_000.0]
    file = line_file(path, clock, bytes=2)
    for number, step in enumerate((0, 0, -5000, 1, -90_000, 0, 200_000, 0)):
        clock[0] += step
        file.write(b"%d\n" % number, allow)
    file.close()
    assert whole(path) == b"".join(b"%d\n" % number for number in range(8))
    assert all(re.fullmatch(r"out-[0-9]{8}T[0-9]{6}Z-[0-9]{6}\.jsonl", one.name) for one in rotated(path))
    clock[0] = 1_000_000_000.0
    file = line_file(path, clock, bytes=2)
    file.write(b"8\n", allow)
    file.close()
    assert whole(path) == b"".join(b"%d\n" % number for number in range(9))


def test_the_numbers_of_a_second_can_run_out(tmp_path: Path) -> None:
    files = RotatedFiles(str(tmp_path / "out.jsonl"))
    (tmp_path / "out-20270115T080000Z-999999.jsonl.gz").write_bytes(b"x")
    files.learn()
    made = [Path(files.reserve(0)).name for _ in range(2)]
    assert made == ["out-20270115T080001Z-000001.jsonl", "out-20270115T080001Z-000002.jsonl"]


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    path, clock = tmp_path / "out.jsonl", [1_800_000_000.0]
    file = line_file(path, clock, bytes=2)
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
        sink = await sink_of(link, bytes=2)
        await sink.publish(batch(b"1", b"2"))
        await sink.close()

    asyncio.run(run())
    assert link.is_symlink()
    assert whole(tmp_path / "real" / "file.jsonl") == b"1\n2\n"


# -- compression, and how many are kept -------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_rotated_files_are_compressed_and_the_present_one_is_not(
    tmp_path: Path, compression: Compression
) -> None:
    path = tmp_path / "out.jsonl"
    sink = await sink_of(path, bytes=5000, compression=compression)
    for number in range(20):
        await sink.publish(batch(*[b'{"n":%d}' % number] * 200))
    end = {"gzip": ".gz", "zstd": ".zst"}[compression]
    await until(lambda: all(one.suffix == end for one in rotated(path)))
    await sink.close()
    assert whole(path) == b"".join(b'{"n":%d}\n' % number * 200 for number in range(20))
    assert path.read_bytes().startswith(b"{")
    assert rotated(path)[0].stat().st_size < 1000
    assert {one.stat().st_mode & 0o777 for one in rotated(path)} == {path.stat().st_mode & 0o777}


async def test_a_slow_compression_holds_up_no_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(self: Any, name: str) -> None:
        loop.call_soon_threadsafe(began.set)
        while not self._stop.wait(0.01):
            pass
        raise jsonl_rotated._Stopped

    monkeypatch.setattr(jsonl_rotated.Housekeeper, "_compress", slowly)
    path = tmp_path / "out.jsonl"
    sink = await sink_of(path, bytes=10, compression="gzip")
    async with asyncio.timeout(10):
        await sink.publish(batch(b"1" * 9, b"2" * 9))
        await began.wait()
        for _ in range(5):
            await sink.publish(batch(b"3" * 9))
    await sink.close()
    assert len(rotated(path)) == 6


async def test_the_end_does_not_wait_for_a_compression_which_is_done_after_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    big = [os.urandom(100_000).hex().encode()] * 100  # takes a second or so
    sink = await sink_of(path, bytes=30_000_000, compression="gzip")
    await sink.publish(batch(*big))
    await sink.publish(batch(b"x" * 15_000_000))
    await until(lambda: any(one.name.endswith(".tmp") for one in tmp_path.iterdir()))
    begin = time.monotonic()
    await sink.close()
    assert time.monotonic() - begin < 1
    assert [one.suffix for one in rotated(path)] == [".jsonl"]
    sink = await sink_of(path, bytes=30_000_000, compression="gzip")
    await until(lambda: [one.suffix for one in rotated(path)] == [".gz"], 30)
    await sink.close()
    assert whole(path) == b"".join(value + b"\n" for value in [*big, b"x" * 15_000_000])


def test_a_name_that_is_only_reserved_is_not_compressed(tmp_path: Path) -> None:
    files = RotatedFiles(str(tmp_path / "out.jsonl"))
    reserved = Path(files.reserve(0))
    housekeeper = Housekeeper(files, Rotation(bytes=1, compression="gzip", keep=1))
    housekeeper.tidy()
    housekeeper.close()
    assert [one.name for one in tmp_path.iterdir()] == [reserved.name]


async def test_what_a_crash_left_half_done_is_done_at_the_next_start(tmp_path: Path) -> None:
    path, names = tmp_path / "out.jsonl", [f"out-20260101T000000Z-{n:06}.jsonl" for n in range(1, 5)]
    (tmp_path / names[0]).write_bytes(b"1\n")
    (tmp_path / f"{names[0]}.gz.tmp").write_bytes(b"half")
    (tmp_path / names[1]).write_bytes(b"2\n")
    (tmp_path / f"{names[1]}.gz").write_bytes(b"whole, but not known to be: the plain file is still there")
    (tmp_path / names[2]).write_bytes(b"")  # reserved, and not rotated to
    path.write_bytes(b'3\n{"n":4')
    sink = await sink_of(path, bytes=1000, compression="gzip")
    await sink.publish(batch(b"4"))
    await until(lambda: [one.name for one in rotated(path)] == [f"{name}.gz" for name in names[:2]])
    await sink.close()
    assert whole(path) == b"1\n2\n3\n4\n"


async def test_only_the_newest_files_are_kept_and_others_are_no_business_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    strangers = ["out-1.jsonl", "out-20260101T000000Z-000001.txt", "other-20200101T000000Z-000001.jsonl"]
    for name in strangers:
        (tmp_path / name).write_bytes(b"keep me")
    sink = await sink_of(path, bytes=2, keep=3, compression="gzip")
    for number in range(10):
        await sink.publish(batch(b"%d" % number))

    def ours() -> list[Path]:
        return [one for one in rotated(path) if one.name not in strangers]

    await until(lambda: [unpacked(one) for one in ours() if one.suffix == ".gz"] == [b"6\n", b"7\n", b"8\n"])
    await sink.close()
    assert len(ours()) == 3
    assert all((tmp_path / name).read_bytes() == b"keep me" for name in strangers)


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
    await sink.close()
    assert ((tmp_path / "taken").read_bytes(), path.read_bytes()) == (b"1\n", b"2\n")


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
    sink = JsonlSink(str(path), lease, Rotation(bytes=2))
    await sink.start()
    await sink.publish(batch(b"1"))
    now[0] = 20.0
    with pytest.raises(LeaseLapsed):
        await sink.publish(batch(b"2"))
    await sink.abort()
    assert whole(path) == b"1\n"


async def test_what_is_no_file_can_t_be_rotated(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    sink = JsonlSink(str(tmp_path / "fifo"), Lease(), Rotation(bytes=1000))
    with pytest.raises(SinkRejected, match="no regular file"):
        await sink.start()
    await sink.abort()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_no_row_is_lost_or_torn_by_kills_in_the_middle_of_rotations(tmp_path: Path, compression: Compression) -> None:
    path, confirmed, random = tmp_path / "out.jsonl", tmp_path / "confirmed", Random(5)
    for _ in range(12):
        words = [sys.executable, "-m", "tests.jsonl", str(path), str(confirmed), compression]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            while process.stdout.readline() != b"started\n":  # before it, warnings about half a line
                assert process.poll() is None
            time.sleep(random.uniform(0.01, 0.25))
            process.kill()
    count = int(confirmed.read_text()) + 1

    async def mend() -> None:
        sink = await sink_of(path, bytes=30_000, compression=compression)
        await until(lambda: not any(one.suffix in (".tmp", ".jsonl") for one in rotated(path)), 30)
        await sink.close()

    asyncio.run(mend())
    numbers = [json.loads(line)["n"] for line in whole(path).splitlines()]
    seen: dict[int, None] = dict.fromkeys(numbers)
    assert list(seen)[:count] == list(range(count)), "each row, and in order"
    assert all(
        after - before == 1 or (after <= before and after % 40 == 0) for before, after in itertools.pairwise(numbers)
    )
    assert len(rotated(path)) > 12
    assert count > 1000
