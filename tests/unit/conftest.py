"""Fixtures of several files here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.adapters.sqlite.parking import SqliteParkingStore
from headrace.adapters.sqlite.state import SqliteStore
from headrace.lease import Guard
from headrace.mysql.events import splitter
from headrace.native import find
from headrace_spark.status.outages import Outages
from headrace_spark.status.status import Status
from tests import streams
from tests.clock import Clock
from tests.streams import open_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A SQLite store of the test's own, open."""
    made = await open_store(tmp_path)
    yield made
    await made.close()


@pytest.fixture(params=["Python", "native"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The test runs twice: with Python alone (None), and with headrace-native where it is installed."""
    native = find().module
    if request.param == "native" and native is None:
        pytest.skip("headrace-native is not installed: scripts/build-native")
    monkeypatch.setattr(streams, "in_native_code", request.param == "native")
    return native if request.param == "native" else None


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that came together are read together, even if the machine is so busy that this takes long."""
    monkeypatch.setattr(splitter, "SLICE_SECONDS", 60.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def status(clock: Clock) -> Status:
    """Of a Spark consumer that has done nothing yet."""
    return Status(Outages(clock), clock, lambda: clock.now + 1_700_000_000)


@pytest.fixture
async def parked(store: SqliteStore) -> SqliteParkingStore:
    return SqliteParkingStore(store, "shop")


@pytest.fixture
async def guard(store: SqliteStore) -> Guard:
    return await store.begin_epoch("shop")
