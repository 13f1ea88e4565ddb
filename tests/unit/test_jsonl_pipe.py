"""Lines into a pipe: readers that are slow, gone, or share it with others, and pipes that never block."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.adapters.jsonl.pipe import LinePipe
from headrace.adapters.jsonl.sink import JsonlSink
from headrace.errors import OutputClosed, SinkError
from headrace.lease import Lease
from tests.jsonl import batch


@pytest.fixture
def ends() -> Iterator[list[int]]:
    """Of a pipe with room for one page: the reader's and the writer's."""
    made = list(os.pipe())
    fcntl.fcntl(made[1], fcntl.F_SETPIPE_SZ, 4096)
    yield made
    for one in made:
        os.close(one)


class Reader(threading.Thread):
    """Reads a little now and then, until all writers are gone."""

    def __init__(self, descriptor: int, pause: float) -> None:
        super().__init__(name="reader")
        self._descriptor, self._pause = os.dup(descriptor), pause
        self.text = b""

    def run(self) -> None:
        while chunk := os.read(self._descriptor, 3000):
            self.text += chunk
            time.sleep(self._pause)
        os.close(self._descriptor)


def allow() -> None: ...


@pytest.mark.parametrize("blocking", [True, False])
def test_all_comes_to_a_slow_reader_also_when_the_pipe_never_blocks(ends: list[int], blocking: bool) -> None:
    os.set_blocking(ends[1], blocking)
    pipe, reader = LinePipe(os.dup(ends[1]), "p", shared=True), Reader(ends[0], 0.001)
    os.close(ends[1])
    ends[1] = os.dup(ends[0])
    reader.start()
    lines = b"".join(b"%d" % n * (n % 90) + b"\n" for n in range(3000))
    pipe.write(lines, allow)
    pipe.close()
    reader.join(20)
    assert reader.text == lines


def test_a_line_that_has_begun_is_ended_before_another_sink_writes(ends: list[int]) -> None:
    one, two = (LinePipe(os.dup(ends[1]), "p", shared=True) for _ in range(2))
    reader, stop = Reader(ends[0], 0.002), threading.Event()
    os.close(ends[1])
    ends[1] = os.dup(ends[0])
    checks = []

    def check() -> None:
        checks.append(1)
        if stop.is_set():
            raise SinkError("the sink was ended")

    def first() -> None:
        with pytest.raises(SinkError):
            one.write(b"".join(b"a" * 150_000 + b"\n" for _ in range(50)), check)
        one.close()

    writer = threading.Thread(target=first)
    writer.start()
    reader.start()
    while len(reader.text) < 200_000:  # within the second line
        time.sleep(0.001)
    stop.set()
    two.write(b"b\n", allow)
    two.close()
    writer.join(20)
    reader.join(20)
    lines = reader.text.split(b"\n")
    assert set(lines) == {b"a" * 150_000, b"b", b""}
    assert lines[-2:] == [b"b", b""]
    assert 2 < len(lines) < 10, "and no further line was begun"


def test_no_line_is_begun_after_the_end(ends: list[int]) -> None:
    pipe = LinePipe(os.dup(ends[1]), "p", shared=True)

    def check() -> None:
        raise SinkError("the sink was ended")

    with pytest.raises(SinkError):
        pipe.write(b"a\nb\n", check)
    pipe.close()
    os.set_blocking(ends[0], False)
    with pytest.raises(BlockingIOError):
        os.read(ends[0], 10)


def test_a_reader_that_is_gone_is_reported_in_words(ends: list[int]) -> None:
    pipe = LinePipe(os.dup(ends[1]), "standard output", shared=True)
    os.close(ends[0])
    ends[0] = os.dup(ends[1])
    with pytest.raises(OutputClosed, match="the reader of standard output is gone"):
        pipe.write(b"1\n", allow)
    pipe.close()


_PROGRAM = """
import asyncio, sys, time
from headrace.lease import Lease
from headrace.adapters.jsonl.sink import JsonlSink
from tests.jsonl import batch

async def main():
    sink = JsonlSink("-", Lease())
    await sink.start()
    beats = 0
    async def beat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.005)
            beats += 1
            if beats == 40:
                print("alive", file=sys.stderr, flush=True)
    beating = asyncio.create_task(beat())
    try:
        for number in range(100):
            await (await sink.publish(batch(*[b"%d" % number * 100] * 50)))
    except Exception as error:
        print(type(error).__name__, file=sys.stderr)
    beating.cancel()
    await sink.close()

asyncio.run(main())
"""


def test_a_slow_reader_of_standard_output_does_not_stop_the_loop() -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            # Nobody reads, so the pipe is full long before the 40th beat; what the loop says of it comes all the same.
            reported, _, _ = select.select([process.stderr], [], [], 60)
            assert reported
            assert process.stderr.readline() == b"alive\n"
            lines = process.stdout.read().splitlines()
        finally:
            process.kill()
    assert lines == [b"%d" % number * 100 for number in range(100) for _ in range(50)]


def test_standard_output_that_is_a_full_disk_is_an_error_and_no_traceback() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", _PROGRAM], stdout=full, stderr=subprocess.PIPE, timeout=30)
    assert done.stderr.splitlines()[0] == b"SinkError"


async def test_two_sinks_may_share_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    sinks = [JsonlSink("-", Lease()) for _ in range(2)]
    for sink in sinks:
        await sink.start()
    await asyncio.gather(*(sink.publish(batch(*[name] * 2000)) for sink, name in zip(sinks, (b"a", b"b"), strict=True)))
    for sink in sinks:
        await sink.close()
    lines = capfd.readouterr().out.split("\n")
    assert sorted(lines) == ["", *["a"] * 2000, *["b"] * 2000]
