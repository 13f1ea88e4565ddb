"""Runs one destination: lock, position, source and sink, and what to do if the position is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from headrace import __version__
from headrace.destination.absence import Absence, try_load
from headrace.destination.acknowledging import noted_pause
from headrace.destination.archiving import keep_archive
from headrace.destination.assembly import Hangs, assemble
from headrace.destination.binlogs import check_binlogs
from headrace.destination.checkpointer import Checkpointer
from headrace.destination.dependencies import Context, Dependencies
from headrace.destination.heartbeat_writer import HeartbeatWriter
from headrace.destination.lost_state import sign_of_life, state_lost
from headrace.destination.operator import Operator
from headrace.destination.outage import SinkOutage, Unconfirmed
from headrace.destination.publisher import Publisher, publishing
from headrace.destination.requests import Requests
from headrace.destination.run import Lasting
from headrace.destination.several_sources import SeveralSources
from headrace.destination.standby import Standby
from headrace.destination.status import DestinationStatus
from headrace.errors import (
    Fenced,
    HeadraceError,
    NotUnderstood,
    PositionLost,
    SinkError,
    SourceMisconfigured,
    SplitBrain,
)
from headrace.model import Gap, Position, State
from headrace.native import find
from headrace.parking.parking import OrderedParking, ensure_delivered
from headrace.ports.lock import Hang
from headrace.ports.measures import Measure
from headrace.ports.source import Heartbeat, OpenSource
from headrace.ports.state import StateChange, StateStore, Stored
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from headrace.settings.snapshot import READS_ROWS
from headrace.settings.values import StartLatest, start_text
from headrace.snapshot.plan import first_snapshot
from headrace.tasks import Work, alongside, first, set_within

_POLL_STORE = 1.0
"""Seconds between two checks of the state store while a destination waits for an operator."""
_FLOOR_LIMIT = 3.0
"""Maximum seconds that a source may take to return the epoch of our heartbeat row while a lock is being taken."""
_SIGNS_MARGIN = 2.0
"""Seconds beyond two heartbeats in which another living daemon has certainly written something."""
_MOST_HANGS = 2
"""Number of daemons that may hang on one event before the event is blamed and not the machine."""
_MOVES = 3
"""Moves by a policy in one run; more would be a loop."""
_HOLDER_FAILS = 30.0
"""Seconds that requests wait for the lock: enough for two other daemons to try and fail."""


class Destination:
    """Runs one destination from lock to drain. run() may be called again after it has raised."""

    def __init__(
        self,
        settings: DestinationSettings,
        daemon: DaemonSettings,
        dependencies: Dependencies,
        status: DestinationStatus,
    ) -> None:
        self.name = settings.name
        self._context = Context(settings, daemon, status)
        self._settings, self._daemon, self._dependencies, self.status = settings, daemon, dependencies, status
        self._store, self._lock, self._source = dependencies.store, dependencies.lock, dependencies.new_source()
        self._log = self._context.log
        self._checkpointer, self._unconfirmed = Checkpointer(self._context), Unconfirmed()
        self.requests = Requests()
        self.operator = Operator(
            self._context, dependencies, self._source, self._checkpointer, self._unconfirmed, self.requests
        )
        self._outage = SinkOutage(self._context, self._unconfirmed)
        self._lasting = Lasting(
            self._context,
            dependencies,
            self._checkpointer,
            self._unconfirmed,
            self._outage,
            self.operator,
            self._source.acknowledger(),
        )
        self._absence = Absence(settings.name, dependencies, self._source, self._outage)
        self._fenced = False
        """Whether the last run ended because another daemon runs the destination."""
        self._hang: Hang | None = None
        """The hang that a former holder has recorded."""
        self._serves = False
        """Whether the present run has reached the point where it handles requests."""
        self._publisher: Publisher | None = None
        """That of the present run."""

    def measures(self) -> Sequence[Measure]:
        """Returns the metrics of source and sink."""
        position, publisher = self.status.stored.position, self._publisher
        of_source = self._source.measures(position) if position is not None else ()
        return [*of_source, *(publisher.sink.measures() if publisher is not None else ())]

    async def observe(self) -> None:
        """Watches what matters also while run() fails and waits; until it is cancelled."""
        self._log.info("state", store=self._store.describe())
        works: dict[str, Work] = {"binlogs": check_binlogs(self._context, self._source)}
        if self._context.settings.source.standby:
            works["several"] = SeveralSources(self._context, self._source).run()
        archiver, use = self._source.archiver(), self._dependencies.archive
        if archiver is not None and use is not None:
            works["archive"] = keep_archive(self._context, archiver, use)
        await first(works)

    async def changed(self) -> str:
        """Waits until a retry makes sense, and returns the reason: somebody else, such as `headrace position set`, has
        written to the state store; the lock service, source or sink is back; or there is a request."""
        works: dict[str, Work] = {
            "the stored position was changed": self._written(),
            "the lock service is back": self._lock.recovered(),
            "something was asked for": self.requests.some(),
            "away": self._absence.over(),
        }
        ended = await first(works)
        return str(ended.get("away") or next(iter(ended)))

    async def _written(self) -> None:
        # A run that failed before it had read the position, because its sink was unavailable, does not know what is
        # stored.
        known = self._checkpointer
        seen = known.version if known.loaded else None
        while True:
            if (found := await try_load(self._store, self.name)) is not None:
                if seen is None:
                    seen = found.version
                elif found.version != seen:
                    return
            await asyncio.sleep(_POLL_STORE)  # not all stores have an event to wait for

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set and everything in flight is confirmed. Raises if something fails."""
        while not stop.is_set():
            self._absence.begin()
            # Also if an attempt fails before it reads: changed() would otherwise compare with an old state.
            self._checkpointer.loaded = self._serves = False
            # A stall continues until something is confirmed, whatever is tried meanwhile.
            if not self._unconfirmed.oldest:
                self.status.enter(State.STARTING)
            try:
                await self._store.open()
                await self._ensure_alone(stop)
                if await self._hold(stop):
                    await self._run_held(stop)
            except HeadraceError as error:
                self._absence.failed(error)
                self.status.lag.note_failure(sink=isinstance(error, SinkError) and error.retriable)
                if isinstance(error, Fenced):
                    self._fenced = True
                    self.status.holding.fence()
                self._refuse_waiting(str(error.args[0]))
                raise
            except Exception as error:
                self._refuse_waiting(f"an unexpected error, {type(error).__name__}")
                raise
            finally:
                self.status.holding.give_up()
                await self._lock.release()

    def _refuse_waiting(self, why: str) -> None:
        """Refuses the waiting requests after an attempt that could handle none: they would end each wait for
        nothing."""
        if not self._serves:
            self.requests.refuse(f"it can't be done now: {why}")

    async def _run_held(self, stop: asyncio.Event) -> None:
        """Runs until `stop`, or until the lock is wanted elsewhere: both end in order."""
        halt = asyncio.Event()
        async with alongside({"stop": stop.wait(), "asked away": self._away()}) as waits:
            for wait in waits.values():
                wait.add_done_callback(lambda _: halt.set())
            self._serves = True
            while not halt.is_set():
                await self._do_requests(halt)
                if paused := await self._paused():
                    self.status.enter(State.PAUSED, "operator", f"paused by {paused}; headrace resume {self.name}")
                    lost = self._lock.lease.ended()  # nothing else checks it: there is no publisher
                    with noted_pause(self._context):
                        await first({"halt": halt.wait(), "requests": self.requests.some(), "lost": lost})
                else:
                    if self.status.reason == "operator":  # resumed: a start that fails must not look like a pause
                        self.status.enter(State.STARTING)
                    await self._run_until(halt)

    async def _do_requests(self, halt: asyncio.Event) -> None:
        """Handles operators' requests, and shows meanwhile why nothing streams."""
        if not self.requests.waiting:
            return
        shows = self.status.state.healthy or self.status.state is State.STARTING  # else there is a worse state to show
        if shows:
            self.status.enter(State.STARTING, "operator", "what an operator asked for is being done")
        await self.requests.do_all(halt)
        if shows:
            self.status.enter(State.STARTING)

    async def _paused(self) -> str:
        """Returns who has paused the destination, and when; "" if it is not paused."""
        position = (await self._load(self._store)).position
        return position.paused if position is not None else ""

    async def _run_until(self, halt: asyncio.Event) -> None:
        """Runs until `halt`, or until a request comes that is handled between two runs."""
        turn = asyncio.Event()
        async with alongside({"halt": halt.wait(), "requests": self.requests.some()}) as waits:
            for wait in waits.values():
                wait.add_done_callback(lambda _: turn.set())
            await self._run_moving(turn)

    async def _away(self) -> None:
        self._log.info("hands the destination over", why=await self._lock.hand_over_asked())

    async def _run_moving(self, halt: asyncio.Event) -> None:
        """Runs, and runs again from where a policy has moved a lost position."""
        moves = 0
        while True:
            try:
                await self._run(halt)
                return
            except PositionLost as lost:
                moves += 1
                if moves > _MOVES or not await self._move(lost):
                    raise
            finally:
                if (parked := self._dependencies.parked) is not None:
                    await parked.close()

    async def _run(self, stop: asyncio.Event) -> None:
        """Streams from the stored position to the end of the stream."""
        self._checkpointer.loaded = False
        self._unconfirmed.begin_run()
        stored: Stored | None = None
        if not self._settings.exactly_once:  # with it, the position can be read only once the sink is open
            # Also while the sink is unavailable it matters how long the source keeps the binlog that we need.
            stored = await self._load(self._store)
        parked = self._dependencies.parked
        parking = OrderedParking(self._settings.parking, parked, self.name, self.status.note_parked) if parked else None
        async with publishing(self._context, self._dependencies, self._lock.lease, parking) as publisher:
            store, self._publisher = publisher.store, publisher
            await ensure_delivered(self.name, self._dependencies.former_parked)
            stored = stored or await self._load(store)
            await self._ensure_no_hang(stored)
            entries = await store.schema_entries(self.name)
            await self._ensure_first_start(store, stored, entries)
            source = await _unless(stop, lambda: self._open(stored, entries))
            if source is None:
                return
            self._absence.opened()
            second = self._source.second_connection()
            heartbeats = HeartbeatWriter(self._context, second)
            try:
                await self._begin(store, heartbeats)
                begin = await self._store_start(store, stored, source)
                if parking is not None:
                    await parking.open(self._checkpointer.guard)
                hangs = Hangs(self._note_hang, self._passed_over())
                await assemble(self._lasting, source, publisher, heartbeats, second, begin, hangs).run(stop)
            finally:
                self._publisher = None
                await second.close()
                await source.close()

    # -- an event on which the event loop hangs -----------------------------------------------------------------------

    async def _ensure_no_hang(self, stored: Stored) -> None:
        """Raises NotUnderstood if two daemons in a row hung on one event and were ended for it: this one would hang
        too, with all its other destinations. Does not raise if anything has changed since."""
        hang = self._hang = await self._lock.hang()
        if hang is None or stored.position is None:
            return
        same = hang.position == str(stored.position) and hang.program == self._program
        if same and hang.times >= _MOST_HANGS and hang.place not in self._settings.source.skip_event:
            raise NotUnderstood(
                f"at {hang.place}: the event loop of {hang.times} daemons hung while they read this event, or one "
                "shortly after it, and the watchdog ended them",
                remedy=f"report it; to go on, set [source] skip_event = ['{hang.place}'] or a position after it "
                "(headrace position set DESTINATION WHERE); another version of headrace, or of [daemon] native, tries "
                "the event again",
            )
        self._log.warning("a daemon hung while it read an event, and was ended", place=hang.place, times=hang.times)

    @property
    def _program(self) -> str:
        return f"{__version__}, {find(self._daemon.native)}"

    def _passed_over(self) -> str:
        """See Receiver.hung."""
        place = self._hang.place if self._hang is not None else ""
        return place if place in self._settings.source.skip_event else ""

    def _note_hang(self, place: str) -> str:
        """Records where the loop hangs; called in the watchdog's thread, see Cover.note."""
        if not place:
            return ""
        before, position = self._hang, str(self.status.stored.position or "")
        times = before.times + 1 if before is not None and before.place == place else 1
        self._lock.note_hang(Hang(place, position, self._program, times))
        return f"destination {self.name}, {place}"

    async def _load(self, store: StateStore) -> Stored:
        """Reads what is stored. If somebody has moved the position, messages that waited may not come again."""
        stored, moved = await self._checkpointer.load(store)
        if moved:
            self._unconfirmed.give_up()
        return stored

    async def _ensure_first_start(self, store: StateStore, stored: Stored, entries: Sequence[dict[str, Any]]) -> None:
        """Raises PositionLost if nothing is stored although the destination has run: to begin at the end of the binlog
        would silently skip rows. Any other [source] start names the position; an operator's reset is stored."""
        source = self._settings.source
        may_begin = source.on_state_lost == "start" or source.snapshot_mode == "when_needed"
        if stored.version or not isinstance(source.start, StartLatest) or may_begin:
            return
        async with self._heartbeats() as heartbeats:
            sign = sign_of_life(await heartbeats.stored(required=True), entries)
        if sign:
            raise state_lost(store.describe(), sign)

    async def _begin(self, store: StateStore, heartbeats: HeartbeatWriter) -> None:
        """Begins a new epoch, above that of our row on the source too, so that a lost state store can't lead back to
        old epochs."""
        above = await heartbeats.stored_epoch()
        epoch = await self._checkpointer.begin_epoch(
            store, self._lock.term, above=above, meanwhile="its source was opened"
        )
        heartbeats.epoch = epoch
        # For the log lines of this run's tasks, those of libraries included.
        structlog.contextvars.bind_contextvars(epoch=epoch)

    # -- the source -----------------------------------------------------------------------------------------------

    async def _open(self, stored: Stored, entries: Sequence[dict[str, Any]]) -> OpenSource:
        before = self._source.address
        recover = self._settings.source.snapshot_mode == "schema_only_recovery" and stored.position is not None
        source = await self._source.open(
            stored.position, last_pos=stored.last_pos, entries=entries, forget_tables=recover
        )
        if source.address != before:
            self._log.warning("another address of the source is used", address=source.address, before=before)
        self.status.source.open(source.address, source.start.server_uuid, source.server_id)
        return source

    async def _store_start(self, store: StateStore, stored: Stored, source: OpenSource) -> Position:
        """Stores the first start, so that a crash before the first change does not begin elsewhere; and a start that
        skips a divergence, with what it skips. Returns the stored position."""
        start, mode = source.start, self._settings.source.snapshot_mode
        recovers = stored.position is not None and mode == "schema_only_recovery"
        if stored.position is not None and source.gap is None and not recovers:
            return stored.position
        entries = source.take_entries()
        if source.gap is not None:
            await self._store_move(store, source.start, entries, source.gap)
            return source.start
        if stored.position is not None:
            await self._checkpointer.store_now(store, StateChange(stored.position, entries, actor="operator"))
            self._log.warning(
                "the tables' schemas are those that the source shows now, not those that were stored",
                remedy='once is enough: set [source] snapshot to another value, such as "initial"',
            )
            return stored.position
        if mode in READS_ROWS and self._settings.filter.rows:
            start = replace(start, snapshots=(first_snapshot(),))
        await self._checkpointer.store_now(store, StateChange(start, entries))
        begins = self._settings.source.start
        latest = isinstance(begins, StartLatest)
        facts = {"position": str(start), "store": store.describe(), "snapshot": mode, "start": start_text(begins)}
        if start.snapshots:
            since = "now" if latest else "[source] start"
            self._log.info(
                f"first start: all rows of the captured tables are published, and changes from {since} on", **facts
            )
        else:
            where = "at the end of the binlog" if latest else "where [source] start says"
            self._log.warning(
                f"first start, {where}: rows that are there already are not published, changes from there on are",
                remedy=f"to publish them: headrace resync {self.name} --all",
                **facts,
            )
        return start

    # -- a lost position ---------------------------------------------------------------------------------------------

    async def _move(self, lost: PositionLost) -> bool:
        """Applies `on_position_lost`; returns whether the position was moved. Waits while messages that were read are
        unconfirmed, because the next attempt may be able to read them again."""
        policy = self._settings.source.lost_policy
        if policy == "fail" or self._unconfirmed.any:
            return False
        stored = await self._load(self._store)
        if stored.position is None or (move := await self._source.move(policy, lost, stored.position)) is None:
            return False
        store = self._dependencies.leased_store(self._lock.lease)
        await self._checkpointer.begin_epoch(store, self._lock.term, meanwhile="a policy searched where to continue")
        for note in move.notes:
            self._log.warning("the move of the position", note=note)
        # The rest of a snapshot is always read; all of it, if the changes in between are lost.
        snapshots = (first_snapshot(),) if policy == "resnapshot" else stored.position.snapshots
        await self._store_move(store, replace(move.position, snapshots=snapshots), move.entries, move.gap)
        return True

    async def _store_move(
        self, store: StateStore, position: Position, entries: tuple[dict[str, Any], ...], gap: Gap
    ) -> None:
        """Stores a policy's move, and reports what it skips."""
        change = StateChange(position, entries, actor="policy", details={"gap": gap.to_dict()})
        await self._checkpointer.store_now(store, change)
        self._unconfirmed.give_up()
        self.status.moves.note(gap)
        self._log.error("the position was moved by a policy", gap=str(gap), **gap.to_dict())

    # -- the lock -------------------------------------------------------------------------------------------------

    async def _known_epoch(self) -> int:
        """Returns the highest epoch that is known outside the lock. If the source does not answer, it is asked again
        later."""
        stored, row = (await self._store.load(self.name)).epoch, 0
        async with self._heartbeats() as heartbeats:
            # The row is read again before the first heartbeat.
            with contextlib.suppress(TimeoutError, SourceMisconfigured):
                async with asyncio.timeout(_FLOOR_LIMIT):
                    row = await heartbeats.stored_epoch()
        return max(stored, row)

    async def _ensure_alone(self, stop: asyncio.Event) -> None:
        """Waits, after we were fenced although we held the lock, as long as the other daemon shows signs of life;
        otherwise the two would fence each other forever. Raises SplitBrain. Not needed with a lock that all daemons
        share."""
        if not self._fenced or self._lock.shared:
            return
        before, wait = await self._signs(), 2 * self._settings.heartbeat.interval + _SIGNS_MARGIN
        await set_within(stop, wait)
        after = await self._signs()
        if after != before:
            who = f"node {after[1].node}" if after[1] is not None else "another daemon"
            raise SplitBrain(
                f"{who} runs {self.name} too, and under a higher epoch",
                remedy="stop one of the two, or let them share a cluster service",
            )
        self._fenced = False

    @contextlib.asynccontextmanager
    async def _heartbeats(self) -> AsyncIterator[HeartbeatWriter]:
        """Yields a writer for one read of the stored row."""
        second = self._source.second_connection()
        try:
            yield HeartbeatWriter(self._context, second)
        finally:
            await second.close()

    async def _signs(self) -> tuple[int, Heartbeat | None]:
        """Returns what changes while any daemon runs the destination: the version of the stored state, and the
        heartbeat row."""
        async with self._heartbeats() as heartbeats:
            return (await self._store.load(self.name)).version, await heartbeats.stored()

    async def _hold(self, stop: asyncio.Event) -> bool:
        """Waits for the lock as a standby; returns False if `stop` came first."""
        if not stop.is_set() and not await self._lock.try_acquire(self._known_epoch):
            self._unconfirmed.give_up()  # the daemon that runs it handles what waits
            self.status.stand_by()
            standby = Standby(self._context, self._dependencies, self._source)
            async with alongside({"requests": self._refuse_soon()}):
                if not await standby.wait(self._known_epoch, stop):
                    return False
        if stop.is_set():
            return False
        self.status.holding.take(self._lock.lease)
        if self.status.state is State.STANDBY:  # no other daemon runs it now, and it may take long to open the source
            self.status.enter(State.STARTING)
        return True

    async def _refuse_soon(self) -> None:
        """Refuses the waiting requests unless the lock is ours soon. Where a position is lost, each daemon has the lock
        only until its attempt fails, and none would ever handle them."""
        await asyncio.sleep(_HOLDER_FAILS)
        self.requests.refuse(f"{self.name} is run by {self._lock.holder or 'another daemon'}: ask that one")


async def _unless(stop: asyncio.Event, opening: Callable[[], Awaitable[OpenSource]]) -> OpenSource | None:
    """Returns what is opened; None, with nothing open, if `stop` came first: neither a server that does not answer nor
    a long search in its binlogs delays the end."""
    opened: OpenSource | None = None

    async def open_it() -> None:
        nonlocal opened
        opened = await opening()

    ended: dict[str, Any] = {}
    try:
        ended = await first({"open": open_it(), "stop": stop.wait()})
    finally:
        if "open" not in ended and opened is not None:
            await opened.close()  # it was opened despite the cancellation
    return opened if "open" in ended else None
