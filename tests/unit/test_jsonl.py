"""Lines into a file: a write that hangs is neither cut in two nor overtaken by the next sink's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from headrace.adapters.jsonl import sink as jsonl
from headrace.adapters.jsonl.sink import JsonlSink
from headrace.errors import SinkError
from headrace.lease import Lease
from headrace.model import MessageBatch


def batch(*values: bytes) -> MessageBatch:
    return MessageBatch("t", 0, list(values), [[] for _ in values])


async def test_a_write_that_hangs_keeps_its_file_and_no_other_sink_writes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_CLOSE_LIMIT", 0.1)
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    sink = JsonlSink(str(path), Lease())
    await sink.start()
    writing = asyncio.create_task(sink.publish(batch(*[b"a" * 999] * 300)))  # more than a pipe holds
    await asyncio.sleep(0.1)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await sink.abort()
    assert sink._out is not None
    assert sink._out.descriptor >= 0, "its number must not become another file's under the thread that writes"
    successor = JsonlSink(str(path), Lease())
    with pytest.raises(SinkError, match="has not come to its end"):
        await successor.start()
    await successor.abort()
    read = b""
    async with asyncio.timeout(5):
        while sink._out.descriptor >= 0:
            read += _available(reader)
            await asyncio.sleep(0.01)
    successor = JsonlSink(str(path), Lease())
    await successor.start()
    await successor.publish(batch(b"b"))
    await successor.close()
    lines = (read + _available(reader)).split(b"\n")
    assert set(lines) == {b"a" * 999, b"b", b""}
    assert lines[-2:] == [b"b", b""]
    os.close(reader)


def _available(reader: int) -> bytes:
    try:
        return os.read(reader, 1 << 20)
    except BlockingIOError:
        return b""


async def test_after_an_abort_nothing_of_a_batch_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = JsonlSink(str(path), Lease())
    await sink.start()
    await sink.publish(batch(b"1"))
    await sink.abort()
    with pytest.raises(SinkError):
        sink._write(b"2\n")
    await sink.close()
    assert path.read_bytes() == b"1\n"
