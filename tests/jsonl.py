"""What tests of the jsonl sink share: readers of all its files, and a writer as a process that can be killed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from headrace.adapters.jsonl.sink import JsonlSink
from headrace.lease import Lease
from headrace.model import MessageBatch


def batch(*values: bytes) -> MessageBatch:
    return MessageBatch("t", 0, list(values), [[] for _ in values])


def rotated(path: Path) -> list[Path]:
    """The rotated files by name, which has to be their order."""
    return sorted(one for one in path.parent.iterdir() if one.name.startswith(f"{path.stem}-"))


def whole(path: Path) -> bytes:
    """All that was ever written, as the files' names put it."""
    return b"".join(one.read_bytes() for one in rotated(path)) + (path.read_bytes() if path.exists() else b"")


async def _main(path: str, confirmed: Path, number: int) -> None:
    """Publishes numbered rows, from `number` on, until it is killed."""
    sink = JsonlSink(path, Lease(), rotate_bytes=30_000)
    await sink.start()
    print("started", flush=True)
    while True:
        values = [json.dumps({"n": n, "fill": "ä" * (n % 700)}).encode() for n in range(number, number + 40)]
        await (await sink.publish(batch(*values)))
        number += 40
        fresh = confirmed.with_suffix(".new")
        fresh.write_text(str(number - 1))
        fresh.rename(confirmed)


if __name__ == "__main__":
    last = Path(sys.argv[2])
    asyncio.run(_main(sys.argv[1], last, int(last.read_text()) + 1 if last.exists() else 0))
