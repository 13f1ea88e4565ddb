"""The operator: commands to the daemons and to the cluster, given again until they are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.cluster.cluster import Cluster, Member
from headrace.destination.handle import DestinationHandle
from headrace.destination.requests import RequestRefused
from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError
from headrace.model import State
from headrace.snapshot.commands import SnapshotCommand
from sim import parked
from sim.loop import Process
from sim.runtime import SimRuntime
from sim.zookeeper.client import SimZooKeeper, settings_of

if TYPE_CHECKING:
    from sim.world import World

_AGAIN, _LONGEST = 1.0, 15.0
"""Seconds between two tries of a command: at first, and at most. A command may end the start of a run, so one that
came again every second could keep it from starting."""
_POLL = 0.1
_WATCH = 5.0
"""Seconds between two checks whether something needs an operator."""
_LOST = (State.POSITION_LOST, State.SOURCE_CHANGED)
_SETTLES = 30.0
"""Seconds that a destination may take to go on from a position that was set."""
_PATIENCE = 90.0
"""Seconds for which a daemon may take to answer, as a client of HTTP gives up."""

Command = Callable[[DestinationHandle], Coroutine[Any, Any, Any]]


class Operator:
    """Gives commands from a host of its own, which no fault reaches. Those of one destination follow each other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._process = Process(world.loop, "operator")
        self._runtime = SimRuntime(world.loop, world.rng("operator"), self._process, lambda status: None)
        self._turns = {name: asyncio.Lock() for name in world.plan.destinations}
        self.busy = 0
        """Commands that are not done."""

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Does something, and is busy until it is done."""

        async def whole() -> None:
            try:
                await work
            finally:
                self.busy -= 1

        self.busy += 1
        self._world.spawn(whole(), self._process.context())

    # -- destinations ---------------------------------------------------------------------------------------------

    async def give(self, destination: str, command: Command, *, tries: int = 0) -> bool:
        """Gives a command to the daemon that runs a destination; returns whether it was done. `tries`: 0 for no end."""
        world, number = self._world, 0
        while not world.stopping and (not tries or number < tries):
            number += 1
            for daemon in world.daemons.values():
                if not daemon.running or daemon.daemon is None or daemon.process is None:
                    continue
                handle = daemon.daemon.supervisor.handles.get(destination)
                if handle is not None and await self._once(daemon.process, command(handle)):
                    return True
            await asyncio.sleep(min(_AGAIN * number, _LONGEST))
        return False

    async def _once(self, process: Process, work: Coroutine[Any, Any, Any]) -> bool:
        """Returns whether a daemon has done a command. Its process may end meanwhile."""
        world = self._world
        task = world.loop.create_task(_refusable(work), context=process.context())
        deadline = world.loop.time() + _PATIENCE
        while not task.done():
            if not process.alive:
                return False
            if world.loop.time() > deadline:
                task.cancel()
            await asyncio.sleep(_POLL)
        return not task.cancelled() and task.result()

    async def pause(self, destination: str) -> None:
        """Pauses a destination, unless it can't be now."""
        async with self._turns[destination]:
            if await self.give(destination, lambda handle: handle.pause("sim"), tries=3):
                self._world.checker.pause(destination)

    async def resume(self, destination: str) -> None:
        """Ends a pause, which is stored with the position: without one there is none."""
        async with self._turns[destination]:
            topic = self._world.checker.topics[destination]
            topic.paused = None
            if topic.begins:
                await self.give(destination, lambda handle: handle.resume("sim"))

    async def restart(self, destination: str) -> None:
        """Ends the run of a destination, and begins another."""
        async with self._turns[destination]:
            await self.give(destination, lambda handle: handle.restart("sim"), tries=10)

    async def resync(self, destination: str, tables: str) -> None:
        """Has tables read again; "" for all."""
        async with self._turns[destination]:
            topic = self._world.checker.topics[destination]
            length = topic.taken
            if await self.give(destination, _snapshot("resync", tables), tries=10):
                topic.resyncs.append((length, tables))

    async def move_back(self, destination: str, part: float) -> None:
        """Moves a position back to a transaction that was published; `part` of them are before it."""
        world = self._world
        checker, topic = world.checker, world.checker.topics[destination]
        async with self._turns[destination]:
            checker.update()
            published = checker.published(topic)
            if not published or not world.mysql.running:
                return
            event, begins = checker.truth.events[published[int(len(published) * part)]], len(topic.begins)
            to = f"{event.file}:{event.offset}"
            if await self.give(destination, lambda handle: _move(handle, to), tries=5) and len(topic.begins) == begins:
                checker.violation(f"{destination}: a move to {to} was done, and no position was stored")

    async def pause_snapshot(self, destination: str) -> None:
        """Pauses the snapshot that runs; watch() resumes it."""
        async with self._turns[destination]:
            await self.give(destination, _snapshot("pause"), tries=3)

    def watch(self) -> None:
        """Waits until the end for what needs an operator, and does it."""
        self._world.spawn(self._watch(), self._process.context())

    async def _watch(self) -> None:
        world = self._world
        answer, answered = world.plan.answer, dict.fromkeys(self._turns, -_SETTLES)
        while True:
            await asyncio.sleep(_WATCH)
            active = {(fault.kind, fault.target) for fault in world.active}
            refuses = any(kind == "refuse messages" for kind, _ in active)
            for name in self._turns:
                statuses = world.statuses(name)
                lost = answer and any(map(_is_lost, statuses))
                if lost and world.loop.time() - answered[name] > _SETTLES:
                    async with self._turns[name]:
                        if await self.give(name, lambda handle: _move_lost(handle, answer), tries=1):
                            answered[name] = world.loop.time()
                if not refuses and any(status.parked.needs_operator for status in statuses):
                    with suppress(HeadraceError):
                        await parked.retry(world, name)
                paused = any((status.snapshots.now or {}).get("state") == "paused" for status in statuses)
                if paused and ("pause snapshot", name) not in active:
                    async with self._turns[name]:
                        await self.give(name, _snapshot("resume"), tries=1)

    # -- the cluster ----------------------------------------------------------------------------------------------

    async def _cluster(self, command: Callable[[Cluster], Coroutine[Any, Any, None]], tries: int = 0) -> bool:
        """Gives a command to the cluster; returns whether it was done. `tries`: 0 for no end."""
        number = 0
        while not self._world.stopping and (not tries or number < tries):
            number += 1
            cluster = Cluster(SimZooKeeper(settings_of(self._world.plan.daemon)), Member("operator", "", command=True))
            with suppress(HeadraceError):
                try:
                    await cluster.start()
                    await command(cluster)
                    return True
                finally:
                    await cluster.close()
            await asyncio.sleep(_AGAIN)
        return False

    async def drain(self, node: str) -> None:
        """Has a daemon run nothing."""
        if await self._cluster(lambda cluster: cluster.drain(node, "sim"), tries=3):
            self._world.checker.drained[node] = self._world.loop.time()

    async def undrain(self, node: str) -> None:
        """Ends that."""
        drained = self._world.checker.drained
        drained.pop(node, None)
        await self._cluster(lambda cluster: cluster.undrain(node))
        drained.pop(node, None)  # it may have been drained meanwhile, by a command that was given before

    async def hand_over(self, destination: str, node: str) -> None:
        """Has another daemon run a destination, if it waits for it."""

        async def ask(cluster: Cluster) -> None:
            view = await cluster.view()
            assignment = view.assignments.get(destination)
            if assignment is not None and node in assignment.waiting and node not in view.drained:
                await cluster.ask_to_move(destination, node, "sim")

        await self._cluster(ask, tries=3)


def _snapshot(command: str, tables: str = "") -> Command:
    return lambda handle: handle.snapshot(SnapshotCommand(command, tables), "sim")


def _move(handle: DestinationHandle, to: str) -> Coroutine[Any, Any, Any]:
    return handle.move(to, "sim", read_schemas=False, commit=True)


def _is_lost(status: DestinationStatus) -> bool:
    """Returns whether a destination needs another position: also if the standby lacks it, and the operator knows that
    the server that can't be reached does not come back."""
    alone = "can't be reached" in status.message and "has purged" in status.message
    return status.state in _LOST or (status.state is State.FAILED and alone)


async def _move_lost(handle: DestinationHandle, to: str) -> None:
    if not _is_lost(handle.status):
        raise RequestRefused("it goes on")
    if to == "next-file" and handle.status.state is State.SOURCE_CHANGED:
        to = "latest"  # it may be in the last file already
    await _move(handle, to)


async def _refusable(work: Coroutine[Any, Any, Any]) -> bool:
    """Returns whether a command was not refused."""
    try:
        await work
    except HeadraceError:
        return False
    return True
