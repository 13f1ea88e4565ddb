"""Faults after which the source can't serve stored positions any more, or has another history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from sim import archives
from sim.plan import Fault

if TYPE_CHECKING:
    from sim.world import World

Undo = Callable[[], None] | None


def purge(world: World, fault: Fault) -> Undo:
    """Removes binlogs that a paused destination needs."""
    return _while_paused(world, fault, lambda: world.mysql.purge_to(world.mysql.engine.binlog.last.name))


def tear(world: World, fault: Fault) -> Undo:
    """Cuts off the end of a binlog, in the middle of an event, before a paused destination has read it."""

    def cut() -> None:
        *_, file, _ = world.mysql.engine.binlog.files
        file.tear(max(2, len(file.events) - int(fault.number)))

    return _while_paused(world, fault, cut)


def _while_paused(world: World, fault: Fault, damage: Callable[[], None]) -> Undo:
    """Pauses a destination. At the end of the fault, the source begins a new binlog, the earlier ones are damaged, and
    the destination is resumed."""
    operator = world.operator
    operator.begin(operator.pause(fault.target))

    async def end() -> None:
        if world.mysql.running:
            world.at_source(world.mysql.rotate)
            await asyncio.sleep(0.5)  # readers that keep up go to the new file
        archived = bool(world.plan.archive) and await _archived(world)
        if world.mysql.running and len(world.mysql.engine.binlog.files) > 1:
            world.checker.update()
            world.checker.unsafe = not archived
            damage()
        await operator.resume(fault.target)

    return lambda: operator.begin(end())


async def _archived(world: World) -> bool:
    """Waits until every archive has the binlogs before the last one; returns whether they have."""
    for _ in range(120):
        if archives.complete(world, (world.mysql.engine.binlog.last.name, 4)):  # it may have restarted meanwhile
            return True
        await asyncio.sleep(0.5)
    return False


def reset(world: World, fault: Fault) -> Undo:
    """Resets the source's binlogs and GTIDs."""
    server = world.mysql
    if server.running:
        world.checker.source_reset()
        world.at_source(server.reset)
    return None


_MISSED = 5.0
"""Seconds after a restore until a destination goes on that was paused before it."""


def restore(world: World, fault: Fault) -> Undo:
    """Replaces the source's data by a backup that is some seconds old. A destination may miss it, because it is paused:
    the source has committed more when it goes on."""
    backup, operator = world.mysql.backup(), world.operator

    async def pause() -> None:
        await asyncio.sleep(fault.seconds / 2)
        await operator.pause(fault.target)

    async def resume() -> None:
        await asyncio.sleep(_MISSED)
        await operator.resume(fault.target)

    if fault.target:
        operator.begin(pause())

    def undo() -> None:
        server = world.mysql
        world.checker.update()
        world.at_source(lambda: server.restore(backup))
        world.checker.source_changed()
        world.at_source(server.start)
        world.listen_source()
        if fault.target:
            operator.begin(resume())

    return undo


def lose_tail(world: World, fault: Fault) -> Undo:
    """Crashes the source, which loses its last transactions."""
    world.checker.update()
    start = world.end_source(lambda: world.mysql.crash(lose=int(fault.number)))
    if start is not None:
        world.checker.source_changed()
    return start


def fail_over(world: World, fault: Fault) -> Undo:
    """Crashes the source; the same name leads to its replica, which has applied all of it, or lacks the end, or the
    replica is at an address of its own. "back": later to the first server, which lacks what the replica has committed.
    """
    old, replica = world.mysql, world.replica
    if replica is None or replica is old or not old.running:
        return None
    world.checker.update()
    world.end_source(old.crash)
    if not fault.number and replica.following is not None:
        world.at_source(replica.following.catch_up)
    world.at_source(replica.promote)
    replica.set_variable("read_only", False)
    world.lead_to(replica)
    if fault.other != "back":
        return None

    def undo() -> None:
        world.checker.update()
        world.end_source(replica.crash)
        world.lead_to(old, start=True)

    return undo


def lose_state(world: World, fault: Fault) -> Undo:
    """Removes the stored position of a destination."""
    ensemble = world.ensemble
    path = next((path for path in ensemble.nodes if path.endswith(f"/{fault.target}/position")), "")
    if path:
        world.checker.unsafe = True
        world.checker.topics[fault.target].paused = None  # which was stored with it
        ensemble.commit([(path, None)])
    return None


KINDS: dict[str, Callable[[World, Fault], Undo]] = {
    "purge": purge,
    "tear binlog": tear,
    "reset source": reset,
    "restore source": restore,
    "lose tail": lose_tail,
    "fail over": fail_over,
    "lose state": lose_state,
}
