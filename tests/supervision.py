"""What tests of the supervisor share: actors and reloads that do what the test says."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from headrace.destination.requests import Requests
from headrace.destination.status import DestinationStatus
from headrace.model import State
from headrace.ports.measures import Measure
from headrace.settings.destination import DestinationSettings, Settings
from headrace.supervisor.supervisor import RestartPolicy, Supervisor, Wanted
from tests.configured import destination_of
from tests.handles import FakeOperator

FAST = RestartPolicy(base=0.0, cap=0.0, not_retriable=0.0, taken_cap=0.0)
Run = Callable[[DestinationStatus, asyncio.Event], Awaitable[None]]


def settings(*names: str, drain_timeout: float = 30.0) -> Settings:
    raw = {"source": {"host": "h", "user": "u", "password": "p"}, "sink": {"type": "null"}}
    destinations = {name: destination_of({"name": name, **raw}) for name in names}
    return Settings.model_validate({"daemon": {"drain_timeout": drain_timeout}, "destinations": destinations})


async def signalled(boss: Supervisor) -> int:
    """Runs as the daemon does, which signals stop."""
    with boss.handling_signals():
        return await boss.run()


class FakeActor:
    """Runs what the test says."""

    def __init__(self, status: DestinationStatus, run: Run) -> None:
        self._status = status
        self._run = run
        self.outside = asyncio.Event()
        self.requests, self.operator = Requests(), FakeOperator()
        self.observed = 0
        self.trouble: list[BaseException] = []

    async def run(self, stop: asyncio.Event) -> None:
        await self._run(self._status, stop)

    async def observe(self) -> None:
        self.observed += 1
        if self.trouble:
            raise self.trouble.pop()
        await asyncio.Event().wait()

    def measures(self) -> list[Measure]:
        return []

    async def changed(self) -> str:
        await self.outside.wait()
        return "the stored position was changed"


def supervisor(config: Settings, runs: dict[str, Run], policy: RestartPolicy = FAST, **more: object) -> Supervisor:
    return Supervisor(
        config,
        lambda destination, status: FakeActor(status, runs[destination.name]),
        policy=policy,
        **more,  # type: ignore[arg-type]
    )


async def stream(status: DestinationStatus, stop: asyncio.Event) -> None:
    status.enter(State.STREAMING)
    await stop.wait()


async def hang(status: DestinationStatus, stop: asyncio.Event) -> None:
    await stop.wait()


class FakeReloading:
    """Gives what the test wants next."""

    def __init__(self) -> None:
        self.next: asyncio.Queue[Mapping[str, DestinationSettings] | Exception] = asyncio.Queue()
        self.due: list[Mapping[str, DestinationSettings] | Exception] = []
        self.reads: list[bool] = []

    async def watch(self) -> None:
        self.due.append(await self.next.get())

    async def read(self, running: Wanted, *, everything: bool) -> Wanted:
        self.reads.append(everything)
        if not self.due:
            return running
        wanted = self.due.pop()
        if isinstance(wanted, Exception):
            raise wanted
        return wanted


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.001)
