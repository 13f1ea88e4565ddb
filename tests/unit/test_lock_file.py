"""The file lock: one holder, named to the others, and free again however the holder ends."""

# ruff: noqa: ASYNC240  (a test may block its own loop)

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.adapters.local.lock import FileLock
from headrace.errors import StateStoreError

HOLD = """
import asyncio, sys, time
from pathlib import Path
from headrace.adapters.local.lock import FileLock
lock = FileLock(Path(sys.argv[1]), "other")
async def floor():
    return 0
assert asyncio.run(lock.try_acquire(floor))
print("held", flush=True)
time.sleep(600)
"""


async def known_epoch() -> int:
    return 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "var" / "shop.lock"


async def test_one_holds_and_the_other_waits_its_turn(path: Path) -> None:
    one, two = FileLock(path, "one"), FileLock(path, "two", poll=0.001)
    assert one.holder == ""
    await one.acquire(known_epoch)
    assert await one.try_acquire(known_epoch)
    assert one.holder == f"one (pid {os.getpid()})"
    assert not await two.try_acquire(known_epoch)
    assert two.holder == one.holder
    waiting = asyncio.create_task(two.acquire(known_epoch))
    await asyncio.sleep(0)
    assert not waiting.done()
    await one.release()
    await asyncio.wait_for(waiting, 10)
    assert two.holder == f"two (pid {os.getpid()})"
    assert not await one.try_acquire(known_epoch)
    await two.release()
    await two.release()
    assert path.read_text() == ""


async def test_waiting_can_be_cancelled_and_leaves_no_lock(path: Path) -> None:
    one, two = FileLock(path, "one"), FileLock(path, "two")
    await one.acquire(known_epoch)
    waiting = asyncio.create_task(two.acquire(known_epoch))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await one.release()
    assert await one.try_acquire(known_epoch)
    await one.release()


async def test_a_killed_holder_leaves_the_lock_free(path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)  # noqa: ASYNC220
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        lock = FileLock(path, "us", poll=0.001)
        assert not await lock.try_acquire(known_epoch)
        assert lock.holder == f"other (pid {process.pid})"
        process.send_signal(signal.SIGKILL)
        await asyncio.wait_for(lock.acquire(known_epoch), 10)
        await lock.release()
    finally:
        process.kill()
        process.communicate()


async def test_a_replaced_file_is_no_second_lock(path: Path) -> None:
    one, two = FileLock(path, "one"), FileLock(path, "two")
    await one.acquire(known_epoch)
    path.unlink()
    assert await two.try_acquire(known_epoch)  # nothing can prevent this ...
    await one.release()
    assert not await one.try_acquire(known_epoch)  # ... but the old file is never taken for the lock again
    await two.release()


async def test_a_folder_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    lock = FileLock(tmp_path / "file" / "shop.lock", "us")
    with pytest.raises(StateStoreError, match=r"shop\.lock can't be used"):
        await lock.try_acquire(known_epoch)
