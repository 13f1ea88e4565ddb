"""A stored position: whole after a kill at any moment, on disk when its write returns, unharmed by a full disk."""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from headrace.adapters.sqlite.state import SqliteStore
from headrace.errors import StateStoreError
from headrace.ports.state import StateChange
from tests.positions import POSITION


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "headrace.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


def killed_while_storing(path: Path, seconds: float) -> int:
    """Kills a process that stores positions, so long after the first; the last that it told of."""
    words = [sys.executable, "-m", "tests.storing", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        reported = process.stdout.readline()
        assert reported, "it has ended by itself"
        time.sleep(seconds)
        process.kill()
        reported += process.stdout.read()
    return int(reported[: reported.rfind(b"\n")].split(b"\n")[-1])


async def test_a_kill_at_any_moment_leaves_the_last_position_whole(path: Path) -> None:
    random = Random(7)
    for _ in range(6):
        reported = killed_while_storing(path, random.uniform(0, 0.1))
        store = SqliteStore(path)
        await store.open()  # looks through every page
        stored, entries = await store.load("shop"), await store.schema_entries("shop")
        newest, *_ = await store.history("shop")
        await store.close()
        assert stored.position is not None
        number = stored.position.offset
        assert number in (reported, reported + 1), "the last that it told of, or the one that it was writing"
        assert stored.position == replace(POSITION, offset=number) == newest.position
        assert [entry["n"] for entry in entries] == list(range(1, number + 1)), "each with what belongs to it"
        assert stored.version == number


_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_SYNCS = {"x86_64": (74, 75), "aarch64": (82, 83)}
"""The numbers of fsync and fdatasync."""


def let_syncs_fail() -> None:
    """From now on the kernel answers this thread's fsync and fdatasync with EIO: a seccomp filter."""
    first, second = _SYNCS[platform.machine()]
    code = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 1, 0, first),
        (0x15, 0, 1, second),
        (0x06, 0, 0, _FAIL | errno.EIO),
        (0x06, 0, 0, _ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    assert libc.prctl(22, 2, filters) == 0, f"PR_SET_SECCOMP: {errno.errorcode[ctypes.get_errno()]}"


async def test_a_write_returns_once_its_bytes_are_on_disk_and_not_before(store: SqliteStore, path: Path) -> None:
    guard = await store.commit("shop", await store.begin_epoch("shop"), StateChange(POSITION))
    await store.read(lambda _: let_syncs_fail())  # in the store's own thread, which ends with it
    with pytest.raises(StateStoreError, match="can't write: disk I/O error") as caught:
        await store.commit("shop", guard, StateChange(replace(POSITION, offset=9)))
    assert str(path) in str(caught.value)
    assert (await store.load("shop")).position == POSITION


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """No file may become larger than the store's log of writes is now."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(f"{path.name}-wal").stat().st_size + 1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_full_disk_is_an_error_that_says_what_to_do_and_afterwards_writing_goes_on(
    store: SqliteStore, path: Path
) -> None:
    guard = await store.commit("shop", await store.begin_epoch("shop"), StateChange(POSITION))
    later = StateChange(replace(POSITION, offset=9), ({"n": 9},))
    with full_disk(path):
        for _ in range(2):
            with pytest.raises(StateStoreError, match="can't write") as caught:
                await store.commit("shop", guard, later)
    assert str(caught.value).startswith(f"the state store {path} can't write: ")
    assert caught.value.remedy.startswith("check the disk's space")
    assert caught.value.retriable
    for _ in range(2):
        assert (await store.load("shop")).position == POSITION
        assert await store.schema_entries("shop") == []
        await store.close()
        await store.open()
    guard = await store.commit("shop", guard, later)
    assert (await store.load("shop")).position == later.position
    assert len(await store.schema_entries("shop")) == 1
