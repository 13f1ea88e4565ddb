"""One destination as seen from outside: its facts, and the commands to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from headrace import tasks
from headrace.destination.operator import Operator
from headrace.destination.requests import RequestRefused
from headrace.destination.status import DestinationStatus
from headrace.model import State
from headrace.ports.measures import Measure
from headrace.snapshot.commands import SnapshotCommand

_Result = TypeVar("_Result")


class Served(Protocol):
    """The destination of a handle."""

    operator: Operator

    def measures(self) -> Sequence[Measure]:
        """See Destination."""


class DestinationHandle:
    """The only access to a destination for HTTP, and so for the command line. Commands raise RequestRefused if this
    daemon does not run the destination, or the command can't be done now, and the errors of Operator. `who` is for the
    log and the history. A cancelled command is abandoned, unless it is already being stored."""

    def __init__(self, status: DestinationStatus) -> None:
        self.status = status
        self._operator: Operator | None = None
        self.measures: Callable[[], Sequence[Measure]] = tuple
        """Returns the metrics of source and sink."""
        self._stop = asyncio.Event()
        self._log = structlog.get_logger("headrace.destination").bind(destination=status.name)

    def serve(self, destination: Served, stop: asyncio.Event) -> None:
        """Lets the operator of `destination` handle commands, until `stop` or end()."""
        self._operator, self.measures, self._stop = destination.operator, destination.measures, stop

    def end(self) -> None:
        """Stops handling commands."""
        self._operator = None

    async def pause(self, who: str) -> None:
        """See Operator.pause()."""
        await self._do("pause", who, lambda operator: operator.pause(who))

    async def resume(self, who: str) -> None:
        """See Operator.resume()."""
        await self._do("resume", who, lambda operator: operator.resume(who))

    async def restart(self, who: str) -> None:
        """See Operator.restart()."""
        await self._do("restart", who, lambda operator: operator.restart())

    async def move(self, to: str, who: str, *, read_schemas: bool, commit: bool) -> dict[str, Any]:
        """See Operator.move()."""
        move = f"move to {to or '[source] start'}" if commit else f"ask what a move to {to} would cost"
        return await self._do(
            move, who, lambda operator: operator.move(to, who, read_schemas=read_schemas, commit=commit)
        )

    async def snapshot(self, command: SnapshotCommand, who: str) -> dict[str, Any]:
        """See Operator.snapshot()."""
        return await self._do(
            f"{command.command} of a snapshot", who, lambda operator: operator.snapshot(command), streaming=True
        )

    async def _do(
        self,
        what: str,
        who: str,
        do: Callable[[Operator], Coroutine[Any, Any, _Result]],
        *,
        streaming: bool = False,
    ) -> _Result:
        """Executes a command. `streaming`: it needs a running stream."""
        operator, status = self._operator, self.status
        idle = status.state is State.STANDBY or (streaming and operator is not None and not operator.streams)
        if operator is None or self._stop.is_set() or idle:
            raise RequestRefused(self._why_not())
        self._log.info(f"an operator asks: {what}", by=who)
        try:
            ended = await tasks.first({"done": do(operator), "stop": self._stop.wait()})
        except asyncio.CancelledError:
            self._log.warning(f"the client went before it got the result: {what}", by=who)
            raise
        if "done" not in ended:
            raise RequestRefused(f"{status.name} is stopped")
        result: _Result = ended["done"]
        return result

    def _why_not(self) -> str:
        status = self.status
        if status.holding.holder:
            return f"{status.name} is run by {status.holding.holder}: give the command there"
        if status.state is State.STREAMING:
            return f"{status.name} is about to restart or to stop: try again once it streams"
        message = f" ({status.message})" if status.message else ""
        return f"{status.name} does not stream now: it is {status.state.value}{message}"
