"""Stores positions in a loop, and says of each that its write has returned: for a test that kills it.

usage: python -m tests.storing FILE
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from headrace.adapters.sqlite.state import SqliteStore
from headrace.ports.state import StateChange
from tests.positions import POSITION


async def store_positions(path: Path) -> None:
    """Goes on behind the position that is stored, until somebody kills it. Each has an entry of the schema history."""
    store = SqliteStore(path)
    await store.open()
    before = (await store.load("shop")).position
    number, guard = before.offset if before is not None else 0, await store.begin_epoch("shop")
    while True:
        number += 1
        guard = await store.commit("shop", guard, StateChange(replace(POSITION, offset=number), ({"n": number},)))
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(store_positions(Path(sys.argv[1])))
