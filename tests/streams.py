"""A run of a destination without servers: dumps made by hand, a sink that confirms when told to, a real state store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.adapters.sqlite.state import SqliteStore
from headrace.cluster.watchdog import Cover, Watchdog
from headrace.destination.assembly import Hangs, assemble
from headrace.destination.checkpointer import Checkpointer
from headrace.destination.control import Control
from headrace.destination.dependencies import Context
from headrace.destination.outage import SinkOutage, Unconfirmed
from headrace.destination.publisher import Publisher
from headrace.destination.run import Lasting
from headrace.destination.status import DestinationStatus
from headrace.lease import Lease
from headrace.model import MessageBatch, Position
from headrace.mysql.change_stream import Dumps, MysqlStream
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.opening import Dump as MysqlDump
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.table_schemas import TableSchemas
from headrace.mysql.wire.connection import Server
from headrace.ports.source import LogPosition, OpenSource, Receiver
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, SourceSettings
from tests.configured import destination_of, parts_of
from tests.made_binlog import SID, Binlog

Step = bytes | Exception | asyncio.Event
in_native_code = True
"""Whether runs use headrace-native; see the fixture `both_ways` of the unit tests."""


def settings(name: str = "shop", *, source: dict[str, Any] | None = None, **more: Any) -> DestinationSettings:
    """A destination's settings; `source` and `more` add to the least that there has to be."""
    raw = {"host": "h", "user": "u", "password": "p", "snapshot": "never", **(source or {})}
    return destination_of({"name": name, "source": raw, "sink": {"type": "null"}, **more})


def daemon_settings(**more: Any) -> DaemonSettings:
    return DaemonSettings.model_validate({"node": "test", "checkpoint_interval": 0.02, "drain_timeout": 5.0, **more})


async def open_store(folder: Path) -> Any:
    store = SqliteStore(folder / "headrace.db")
    await store.open()
    return store


class Dump:
    """Gives its steps one after the other: bytes, an error, or an event to wait for. Then it is silent."""

    def __init__(self, *steps: Step) -> None:
        self._steps: Iterator[Step] = iter(steps)
        self.last_receive = asyncio.get_running_loop().time()
        self.waiting_since, self.bytes_received = 0.0, 0
        self.closed = False

    def rest(self) -> None:
        pass

    async def read(self, rest: bytes, need: int, deadline: float) -> bytes:
        for step in self._steps:
            if isinstance(step, Exception):
                self.waiting_since = asyncio.get_running_loop().time()
                raise step
            if isinstance(step, bytes):
                self.waiting_since, self.last_receive = 0.0, asyncio.get_running_loop().time()
                return rest + step
            await step.wait()
        self.waiting_since = asyncio.get_running_loop().time()
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        self.closed, self.waiting_since = True, 0.0


class Sleeping(Watchdog):
    """A watchdog that ends no process: leases of tests may have clocks of their own."""

    def cover(self, lease: Lease, note: Callable[[], str] = str) -> Cover:
        return Cover(lease, note)

    def uncover(self, cover: Cover) -> None:
        pass


class HeldPublisher(Publisher):
    """A publisher of one sink for all its life; `renewed` counts how often it was asked for after a lapse."""

    def __init__(self, context: Context, sink: HeldSink, store: Any, lease: Lease, parking: Any) -> None:
        self.made = 0
        self.one = sink
        parts = replace(parts_of(context.settings, store=store), new_sink=lambda *_: self._again(), probe_sink=HeldSink)
        super().__init__(context, parts, lease, parking, Sleeping())
        self.resending = self.sink

    def _again(self) -> Any:
        self.made += 1
        self.one.aborted = False
        return self.one

    @property
    def renewed(self) -> int:
        return self.made - 1

    @property
    def watched(self) -> bool:
        """Whether the watchdog watches it."""
        return self._cover is not None


class HeldSink:
    """Takes everything; confirms at once, or from `flow()` on when it is held."""

    keeps_position, version, failure, store, rests_until = False, 0, None, None, 0.0

    def __init__(self, *, held: bool = False) -> None:
        self.aborted = False
        self.resent = list[MessageBatch]()
        self.held, self.batches, self.waiting = held, list[MessageBatch](), list[asyncio.Future[None]]()

    async def start(self) -> None:
        pass

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.batches.append(batch)
        self.waiting.append(done)
        if not self.held:
            self.flow()
        return done

    async def resend(self, batch: MessageBatch) -> None:
        """Confirmed with flow() only."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.resent.append(batch)
        self.waiting.append(done)
        await done

    async def problem(self) -> str:
        return ""

    def hurry(self) -> None:
        pass

    def flush(self) -> None:
        pass

    def flow(self, count: int | None = None) -> None:
        self.held = self.held and count is not None
        for done in self.waiting[:count]:
            if not done.done():
                done.set_result(None)
        del self.waiting[:count]

    async def abort(self) -> None:
        self.aborted = True
        self.waiting.clear()

    async def close(self) -> None:
        pass

    @property
    def messages(self) -> int:
        return sum(len(batch.values) for batch in self.batches)

    @property
    def ids(self) -> list[str]:
        """The identity of each message, in order."""
        return [dict(headers)["headrace-id"].decode() for batch in self.batches for headers in batch.headers]


class Heartbeats:
    """A second connection that writes nothing and says where the source's binlog ends."""

    def __init__(self, end: tuple[str, int] | Exception = ("b.000001", 0)) -> None:
        self.binlog_end, self.asked = end, 0

    def seen(self, heartbeat: object) -> None:
        pass

    def check(self) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def end(self) -> LogPosition:
        self.asked += 1
        if isinstance(self.binlog_end, Exception):
            raise self.binlog_end
        return LogPosition(*self.binlog_end)


class NoConnection:
    """What a dump by hand runs on."""

    async def close(self) -> None:
        pass


def opened(dump: Dump, start: Position, source: SourceSettings) -> MysqlDump:
    """A dump by hand as one of a server's."""
    packets: Any = dump
    connection: Any = NoConnection()
    server = Server(source, "9.7.4", mariadb=False, gtid_mode=True, lower_case_table_names=0)
    return MysqlDump(packets, connection, server, DumpStart(start, checksums=True))


def no_schemas(server: Server) -> TableSchemas:
    """Of tables that the dump describes: nothing is known of any other."""
    captures = lambda schema, table: True  # noqa: E731
    history = SchemaHistory(captures, mariadb=False, version="9.7.4", lower_case_table_names=0)
    return TableSchemas("shop", server, captures, history)


START = Position("server", "b.000001", 4)
QUICK = {"stall_after": 0.2, "connect_timeout": 1.0}
"""Settings of a source whose silence counts soon."""


def no_reader() -> Any:
    """For runs without a snapshot."""
    raise AssertionError("no table is to be read")


class Again(Dumps):
    """Further dumps, which a function gives."""

    def __init__(self, give: Callable[[Position], Awaitable[MysqlDump]]) -> None:
        self._give = give

    async def reopen(self, position: Position) -> MysqlDump:
        return await self._give(position)


class Run:
    """A run with all that it needs; `reopened` are the dumps that it gets for further ones, or errors."""

    def __init__(self, store: Any, guard: Any, *steps: Step, sink: HeldSink | None = None, **more: Any) -> None:
        self.config = more.pop("config", None) or settings()
        self.daemon = more.pop("daemon", None) or daemon_settings()
        self.companion = more.pop("companion", None) or Heartbeats()
        self.reopened: list[MysqlDump | Exception] = more.pop("reopened", [])
        self.asked: list[Position] = []
        self.sink, self.unconfirmed, self.status = sink or HeldSink(), Unconfirmed(), DestinationStatus("shop")
        self.status.source.address = "h:3306"
        self.context = context = Context(self.config, self.daemon, self.status)
        lease, parking = more.pop("lease", None) or Lease(), more.pop("parking", None)
        self.dump, self.publisher = Dump(*steps), HeldPublisher(context, self.sink, store, lease, parking)
        self.checkpointer = Checkpointer(context)
        self.checkpointer.guard, self.checkpointer.version = guard, guard.version
        dump = opened(self.dump, more.pop("start", START), self.config.source)
        self.schemas: Any = no_schemas(dump.server)
        options = DecoderOptions.of(self.config, self.daemon)

        def stream(receiver: Receiver) -> MysqlStream:
            # A test may put another reopen() in its place.
            return MysqlStream(dump, self.schemas, receiver, options, Again(lambda position: self.reopen(position)))

        source = OpenSource(dump.start.position, None, "h:3306", "9.7.4", 1, tuple, stream, dump.close, no_reader)
        daemon = self.daemon if in_native_code else self.daemon.model_copy(update={"native": "off"})
        context = Context(self.config, daemon, self.status)
        parts = parts_of(self.config, store=store)
        operator: Any = self
        outage = SinkOutage(context, self.unconfirmed)
        lasting = Lasting(context, parts, self.checkpointer, self.unconfirmed, outage, operator)
        companion: Any = self.companion
        made: Any = assemble(lasting, source, self.publisher, companion, companion, dump.start.position, Hangs())
        self.stream = made
        self.stop = asyncio.Event()
        assert not more

    def attach(self, control: Control | None) -> None:
        """See Operator."""
        self.control = control

    async def reopen(self, position: Position) -> MysqlDump:
        """What is done for another dump."""
        self.asked.append(position)
        answer = self.reopened.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def task(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.stream.run(self.stop))


async def begin(store: Any, *steps: Step, **more: Any) -> Run:
    """A run that has just taken the destination over."""
    return Run(store, await store.begin_epoch("shop"), *steps, **more)


async def stored(store: Any) -> Position:
    """The position that stands in the store; there has to be one."""
    position = (await store.load("shop")).position
    assert isinstance(position, Position)
    return position


async def until(condition: Any, limit: float = 5.0) -> None:
    """Returns once the condition holds."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # what is waited for has no event


def three() -> tuple[Binlog, list[int], list[int]]:
    """Three transactions of two rows events each; where each begins, and where its packets do."""
    log, starts, packets = Binlog().begin_file(), list[int](), list[int]()
    for number in (1, 2, 3):
        starts.append(log.at)
        packets.append(len(log.packets))
        log.transaction(number, 1_700_000_000_000_000 + number, [(number, "a")], [(number + 10, "b")])
    starts.append(log.at)
    packets.append(len(log.packets))
    return log, starts, packets


IDS = [f"{SID}:{number}#{event}" for number in (1, 2, 3) for event in (1, 2)]


def error_packet(errno: int, text: str) -> bytes:
    """A server's word instead of an event."""
    body = b"\xff" + errno.to_bytes(2, "little") + b"#HY000" + text.encode()
    return len(body).to_bytes(3, "little") + b"\0" + body
