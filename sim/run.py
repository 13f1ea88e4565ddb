"""One simulation from its plan to its result, in a process of its own."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sim import archives
from sim.coverage import Coverage
from sim.determinism import seed_libraries
from sim.disk import below_sqlite
from sim.loop import Spinning, Stuck
from sim.plan import Plan
from sim.world import World

_HANGS = 300.0
"""Seconds of real time after which a step that does not end is shown, and ends the simulation."""
_SETTLES_WITHIN = 240.0
"""Virtual seconds after the last fault within which everything is published and all destinations stream."""


@dataclass
class Result:
    """What became of a simulation."""

    seed: int
    violations: list[str] = field(default_factory=list)
    digest: str = ""
    virtual: float = 0.0
    real: float = 0.0
    steps: int = 0
    published: int = 0
    settled_after: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)
    seeds: int = 0

    def add(self, other: Result) -> None:
        """Adds the figures of another one."""
        self.seeds += 1
        self.virtual += other.virtual
        self.steps += other.steps
        self.published += other.published
        self.settled_after = max(self.settled_after, other.settled_after)
        self.coverage.add(other.coverage)


def simulate(plan: Plan, show: Callable[[str], None] | None = None, *, brief: bool = False) -> Result:
    """Runs a simulation in a child process, so that nothing of it is left; returns its result. `brief`: it ends at the
    first violation."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(receiving)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
            result = run(plan, show, brief=brief)
            with os.fdopen(sending, "wb") as out:
                pickle.dump(result, out)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    os.close(sending)
    with os.fdopen(receiving, "rb") as answer:
        data = answer.read()
    _, status = os.waitpid(child, 0)
    if not data:
        raise SystemExit(f"sim: the simulation of seed {plan.seed} ended itself, with status {status}")
    made: Result = pickle.loads(data)
    return made


def run(plan: Plan, show: Callable[[str], None] | None = None, *, brief: bool = False) -> Result:
    """Runs a simulation in this process, which must end afterwards."""
    gc.disable()
    faulthandler.dump_traceback_later(_HANGS, exit=True)
    seed_libraries(plan.seed)
    result, began = Result(plan.seed), time.monotonic()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="headrace-sim-", dir=memory) as folder:
        world = World(plan, Path(folder), show)
        archives.prepare(world)
        disks = [daemon.machine.disk for daemon in world.daemons.values() if daemon.machine is not None]
        try:
            with below_sqlite(*disks):
                world.loop.run_until_complete(_all(world, result, brief=brief))
        except asyncio.CancelledError:
            assert world.checker.violations
        except (Spinning, Stuck) as error:
            world.checker.violation(f"{type(error).__name__}: {error}")
        result.violations = world.checker.violations
        result.digest, result.steps = world.trace.digest, world.loop.steps
        result.virtual, result.real = world.loop.time() - world.began, time.monotonic() - began
        result.coverage = world.coverage
    return result


async def _all(world: World, result: Result, *, brief: bool) -> None:
    world.start()
    checking = world.spawn(_check(world, asyncio.current_task() if brief else None))
    await asyncio.sleep(world.plan.seconds)
    world.clients.stop = True
    world.heal()
    healed = world.loop.time()
    while not (world.settled and world.checker.complete):
        if world.loop.time() - healed > _SETTLES_WITHIN:
            world.report_unsettled(_SETTLES_WITHIN)
            break
        await asyncio.sleep(1.0)
    result.settled_after = world.loop.time() - healed
    await asyncio.sleep(5.0)
    checking.cancel()
    await world.stop()
    world.checker.update()
    if world.plan.archive:
        await archives.check(world)
    found = world.checker.finish()
    result.published = sum(one.messages for one in found.values())


async def _check(world: World, whole: asyncio.Task[None] | None) -> None:
    """Checks each second, and ends the whole simulation at its first violation if it is given."""
    while True:
        await asyncio.sleep(1.0)
        faulthandler.dump_traceback_later(_HANGS, exit=True)
        world.checker.update()
        if whole is not None and world.checker.violations:
            whole.cancel()
            return
