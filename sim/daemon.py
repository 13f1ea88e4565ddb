"""A simulated daemon: the real one, with its configuration in a folder of its own, started and ended between steps."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.run import Daemon, serving
from headrace.cli.wiring import ADAPTERS
from headrace.cluster.watchdog import EXIT_STATUS
from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError
from headrace.http.facts import LoopDelay
from headrace.ports.registry import Registry
from headrace.settings.load import Loader
from sim import archives
from sim.disk import Disk
from sim.loop import Process
from sim.network import End
from sim.runtime import SimRuntime
from sim.state import FILE, MACHINE, Machine

if TYPE_CHECKING:
    from sim.world import World

# Adapters are imported when they are first used; here once, before the processes of the simulations are forked.
for _module in (
    "headrace.adapters.kafka.adapter",
    "headrace.adapters.kafka.sink",
    "headrace.adapters.rabbitmq.connection",
    "headrace.adapters.rabbitmq.sink",
    "headrace.formats.canal.format",
    "headrace.http.server",
    "headrace.mysql.adapter",
    "encodings.idna",
    "pydantic.v1",
):
    import_module(_module)

SIMULATED = Registry(
    {
        **ADAPTERS.adapters,
        "cluster": {"zookeeper": "sim.zookeeper.client:SimZooKeeperAdapter"},
        "state": {"sqlite": "sim.state:SimSqliteAdapter"},
    }
)

MONITOR = "monitor"
"""The host that asks each daemon over HTTP."""
PORT = 9180
_LOOP_DELAY = 5.0
"""Seconds between two measurements of the loop's delay: in the simulator they cost more than they tell."""


class SimDaemon:
    """One node. Its files outlive its processes."""

    def __init__(self, world: World, name: str, folder: Path) -> None:
        self._world, self.name, self.folder = world, name, folder
        self.process: Process | None = None
        self.ended = list[Process]()
        """Its former processes: they are kept, because collecting their tasks would run the rest of them."""
        self.task: asyncio.Task[None] | None = None
        self.runtime: SimRuntime | None = None
        self.daemon: Daemon | None = None
        self.serves = False
        """Whether HTTP must answer."""
        self.asked_at = math.inf
        """When its process was asked to stop, on the loop's clock."""
        self.starts = 0
        self.statuses = list[int]()
        """The exit statuses of its processes."""
        self.machine: Machine | None = None
        """Its disk, if it has its state there."""
        folder.mkdir()
        if world.plan.alone:
            disk = Disk(folder, world.rng("disk"))
            disk.on_loss = self.lose_power
            self.machine = Machine(disk, folder, world.stored)
        (folder / "destinations").mkdir()

    def write(self, file: str, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """Writes a file of the configuration."""
        lines = list[str]()
        for section, values in sections.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
        path, now = self.folder / file, self._world.now_us() * 1000
        path.write_text("\n".join([*lines, ""]))
        os.utime(path, ns=(now, now))  # daemons compare it

    def places(self) -> dict[str, dict[str, Any]]:
        """Returns the sections of the configuration that differ from daemon to daemon."""
        plan = self._world.plan.daemon
        sections = {
            "daemon": plan["daemon"] | {"node": self.name},
            "http": plan["http"] | {"listen": f"{self.name}:{PORT}"},
        }
        if self.machine is not None:
            sections["state"] = plan["state"] | {"path": str(self.folder / FILE)}
        return sections

    @property
    def running(self) -> bool:
        """Returns whether it has a process."""
        return self.process is not None and self.process.alive

    def destinations(self) -> list[DestinationStatus]:
        """Returns the states of its destinations; none while it does not run."""
        if not self.running or self.daemon is None:
            return []
        return [handle.status for handle in self.daemon.supervisor.handles.values()]

    def start(self) -> None:
        """Starts a process."""
        assert not self.running
        self.starts += 1
        self.asked_at = math.inf
        loop = self._world.loop
        process = self.process = Process(loop, self.name)
        self.runtime = SimRuntime(loop, self._world.rng("daemon"), process, self._ended)
        if self.machine is not None:
            process.base.run(MACHINE.set, self.machine)
            self.runtime.disk = self.machine.disk
        self.task = loop.create_task(self._run(), name=f"{self.name} {self.starts}", context=process.context())

    async def _run(self) -> None:
        """Runs what `headrace run` does; a service manager starts it again when it ends by itself."""
        process, status = self.process, 1
        try:
            settings = Loader(SIMULATED, {}).load(self.folder / "headrace.toml")
            daemon = Daemon(settings, Loader(SIMULATED, {}), adapters=SIMULATED)
            try:
                await daemon.wiring.open()
                self.daemon = daemon
                facts = replace(daemon.facts("off"), delay=LoopDelay(_LOOP_DELAY))
                async with serving(settings, facts):
                    self.serves = True
                    status = await daemon.supervisor.run()
                    self.serves = False
            finally:
                await daemon.wiring.close()
            budget = daemon.wiring._budget
            left = [queue.used for queue in budget._queues] or budget._alone
            if left and not self._gave_up:
                self._world.checker.violation(f"{self.name} ended, and its budget still counts queues: {left}")
        except HeadraceError as error:
            self._world.trace("process fails", process=self.name, error=error.operator_text())
            self._world.judge_error(str(error))
        if process is self.process:
            self._ended(status)

    def stop(self) -> None:
        """Asks it to drain and stop, as SIGTERM does."""
        if self.daemon is not None and self.running:
            assert self.process is not None
            self.asked_at = min(self.asked_at, self._world.loop.time())
            self.process.context().run(self.daemon.supervisor.request_stop)

    def kill(self) -> None:
        """Ends its process between two steps."""
        self._ended(-9)

    def lose_power(self) -> None:
        """Ends its process and its machine; what was not synced may be lost."""
        assert self.machine is not None
        self._world.trace("power is lost", host=self.name)
        self.machine.disk.lose_power()
        archives.judge_power_loss(self._world, self)
        self._ended(-9)

    def _ended(self, status: int) -> None:
        process = self.process
        if process is not None and process.alive:
            self.statuses.append(status)
            self._world.trace("process ends", process=self.name, status=status)
            if not status and not self._gave_up:
                self._judge_end(process)
            if status == EXIT_STATUS and self.runtime is not None and not self.runtime.hung:
                self._world.checker.violation(f"the watchdog has ended {self.name}, whose loop did not hang")
            process.end()
            if self._world.plan.archive:
                archives.release(self._world, self)
            if self.machine is not None:
                self.machine.disk.end_process()
                for text in self.machine.compare():
                    self._world.checker.violation(f"{self.name}: {text}")
            if status not in (0, -9):
                self._world.start_again(self)
            self.ended.append(process)
            self.daemon, self.serves = None, False

    @property
    def _gave_up(self) -> bool:
        """Returns whether its process ends at the time limit of a stop, as one that is cut off does, and leaves what
        does not end. After all faults none may."""
        if self.daemon is None or self._world.stopping:
            return False
        return self._world.loop.time() - self.asked_at >= self.daemon.supervisor._limit

    def _judge_end(self, process: Process) -> None:
        """No task and no connection outlives an end in order."""
        pending = [task for task in process.tasks if not task.done() and task is not self.task]
        left = [f"{task.get_name()}: {getattr(task.get_coro(), '__qualname__', '?')}" for task in pending]
        if left:
            self._world.checker.violation(f"{self.name} left tasks: {left}")
        owners = [getattr(call, "__self__", None) for call in process.on_end]
        if peers := sorted({one.peer.host for one in owners if isinstance(one, End)} - {MONITOR}):
            self._world.checker.violation(f"{self.name} left connections to {peers}")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value)
