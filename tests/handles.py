"""Handles of destinations that do what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from headrace.destination.handle import DestinationHandle
from headrace.destination.requests import RequestRefused
from headrace.destination.status import DestinationStatus
from headrace.snapshot.commands import SnapshotCommand


def handles_of(statuses: Mapping[str, DestinationStatus]) -> dict[str, DestinationHandle]:
    """Handles of destinations that take no command."""
    return {name: DestinationHandle(status) for name, status in statuses.items()}


class FakeOperator:
    """Takes every command but those of nobody."""

    streams = True

    async def pause(self, who: str) -> None:
        await self.act("pause", who)

    async def resume(self, who: str) -> None:
        await self.act("resume", who)

    async def restart(self) -> None:
        await self.act("restart", "")

    async def move(self, to: str, who: str, *, read_schemas: bool, commit: bool) -> dict[str, Any]:
        await self.act("move", who)
        return {"to": to}

    async def snapshot(self, command: SnapshotCommand) -> dict[str, Any]:
        return {"taken": command.command}

    async def act(self, what: str, who: str) -> None:
        """What each but the last does."""
        if who == "nobody":
            raise RequestRefused(f"no {what} for nobody")


def served(status: DestinationStatus, operator: FakeOperator) -> DestinationHandle:
    """A handle whose commands `operator` does."""
    handle = DestinationHandle(status)
    handle.serve(SimpleNamespace(operator=operator, measures=tuple), asyncio.Event())  # type: ignore[arg-type]
    return handle
