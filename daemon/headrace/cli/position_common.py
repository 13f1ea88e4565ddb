"""What the commands below `headrace position` share: the store, the destination, its lock, and texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from headrace.errors import ConfigError, HeadraceError
from headrace.lock.registry import make_lock
from headrace.model import Gap
from headrace.settings import DestinationSettings, Settings
from headrace.state.base import StateStore
from headrace.state.registry import inspect_store, make_store, store_exists

_PATIENCE = 1.5
"""Seconds that a command waits for a destination's lock."""


class CommandRefused(HeadraceError):
    """The command can't be done as things are; the text says why."""

    retriable = False


def destination(settings: Settings, name: str) -> DestinationSettings:
    """The destination of this name. Raises ConfigError."""
    found = settings.destinations.get(name)
    if found is None:
        raise ConfigError([f"there is no destination '{name}'; there are {', '.join(settings.destinations) or 'none'}"])
    return found


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[StateStore]:
    """The store of [state], which a command never creates. Raises CommandRefused or StateStoreError."""
    if not store_exists(settings.state):
        raise CommandRefused(
            f"there is no state store {settings.state.path.absolute()}: no daemon has run with this configuration",
            remedy="run the command in the daemon's working directory: a relative [state] path counts from there",
        )
    problems = inspect_store(settings.state)
    if problems:
        raise CommandRefused("; ".join(problems))
    store = make_store(settings.state)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def held(settings: Settings, name: str) -> AsyncIterator[None]:
    """Holds the destination's lock. Raises CommandRefused while a daemon runs the destination."""
    lock = make_lock(settings.state, settings.daemon.node, name)
    try:
        async with asyncio.timeout(_PATIENCE):  # a destination that waits holds its lock for each short attempt
            await lock.acquire()
    except TimeoutError:
        raise CommandRefused(
            f"{name} is run by {lock.holder or 'another daemon'}",
            remedy="stop that daemon first; a destination in POSITION_LOST, SOURCE_CHANGED or FAILED waits, and can be "
            "moved while the daemon runs",
        ) from None
    try:
        yield
    finally:
        await lock.release()


async def holder(settings: Settings, name: str) -> str:
    """Who runs the destination now; "" when nobody does."""
    lock = make_lock(settings.state, settings.daemon.node, name)
    if await lock.try_acquire():
        await lock.release()
        return ""
    return lock.holder or "another daemon"


def time_text(micros: int) -> str:
    """A time in microseconds since 1970 for people, in UTC; "-" for 0."""
    if not micros:
        return "-"
    seconds, rest = divmod(micros, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06}Z"


def duration_text(seconds: float) -> str:
    """A duration for people: the largest unit that fits, with one digit behind the point."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def short(text: str, limit: int = 200) -> str:
    """A GTID set for a table, where one of thousands of intervals would hide everything else."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters, --json has all)"


def gap_of(details: dict[str, Any]) -> Gap | None:
    """The gap that an entry of the position history carries."""
    raw = details.get("gap")
    if not isinstance(raw, dict):
        return None
    return Gap(
        str(raw.get("reason", "")),
        str(raw.get("from", "")),
        str(raw.get("to", "")),
        bool(raw.get("backward")),
        raw.get("bytes"),
        raw.get("files"),
        raw.get("transactions"),
        str(raw.get("gtids", "")),
        int(raw.get("at_us", 0)),
    )


def aligned(rows: list[tuple[str, str]], indent: str = "  ") -> str:
    """Names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{indent}{name:<{width}}  {value}".rstrip() for name, value in rows)
