"""The actor of one destination: lock, position, source and sink, and what to do when the place is lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from headrace.destination.delivery import Delivery, delivering
from headrace.destination.heartbeat_writer import Companion
from headrace.destination.parts import Parts
from headrace.destination.retention import RetentionWarning
from headrace.destination.run import Behind, Stream
from headrace.destination.standby import Standby
from headrace.destination.status import DestinationStatus
from headrace.errors import Fenced, PositionLost, SplitBrain, StateStoreError
from headrace.model import Gap, Position, State
from headrace.mysql.position.move import relocate_by_policy
from headrace.mysql.source import MysqlSource
from headrace.parking.parking import Parking, ensure_delivered
from headrace.pipeline.routing import Routing
from headrace.ports.source import Heartbeat, OpenSource
from headrace.ports.state import Guard, StateChange, StateStore, Stored
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from headrace.tasks import beside, first

log = structlog.get_logger(__name__)

_LOOK_AT_STORE = 1.0
"""Seconds between two looks at the state store while a destination waits for an operator."""
_LOOK_AT_BINLOGS = 15.0
"""Seconds between two looks at what the source still has."""
_FLOOR_LIMIT = 3.0
"""Seconds that a source may take to say the epoch of our heartbeat row while a lock is being taken."""
_SIGNS_MARGIN = 2.0
"""Seconds beyond two heartbeats in which another daemon that lives is sure to have written something."""
_MOVES = 3
"""Moves by a policy in one run; more of them would be a circle."""


class Destination:
    """Runs one destination from lock to drain. run() may be called again after it raised."""

    def __init__(
        self,
        settings: DestinationSettings,
        daemon: DaemonSettings,
        parts: Parts,
        status: DestinationStatus,
    ) -> None:
        self._settings, self._daemon, self._parts = settings, daemon, parts
        self._store, self._lock, self.status = parts.store, parts.lock, status
        self._log = log.bind(destination=settings.name)
        self._behind = Behind()
        self._unconfirmed = False
        """Whether messages of the present run wait for confirmation, although it has ended."""
        self._source = MysqlSource(settings, daemon, Routing(settings).captures)
        self._version = 0
        """Of what is stored, as this daemon last saw it."""
        self._loaded = False
        """Whether the last run has read what is stored."""
        self._fenced = False
        """Whether the last run ended because somebody else runs the destination."""

    @property
    def name(self) -> str:
        """The destination's name."""
        return self._settings.name

    async def observe(self) -> None:
        """Looks after what matters also while run() fails and waits; until it is cancelled."""
        watch, looked, file = RetentionWarning(self.status, self._log), 0.0, ""
        while True:
            await asyncio.sleep(1.0)
            position, now = self.status.position, time.monotonic()
            if position is None or self.status.state is State.STANDBY:
                continue
            if position.file != file or now - looked > _LOOK_AT_BINLOGS:
                file, looked = position.file, now
                await watch.look(self._source.settings, position)

    async def changed(self) -> None:
        """Returns once somebody else, such as `headrace position set`, has written to the state store, or the lock
        service is back."""
        await first({"written": self._written(), "lock service": self._lock.recovered()})

    async def _written(self) -> None:
        # A run that failed before it had read the position, because its sink was away, does not know what is stored.
        seen = self._version if self._loaded else (await self._store.load(self.name)).version
        while True:
            await asyncio.sleep(_LOOK_AT_STORE)  # a store has no event to wait for that every kind of it knows
            with contextlib.suppress(StateStoreError):
                if (await self._store.load(self.name)).version != seen:
                    return

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set and everything in flight is confirmed, or something fails: then it raises."""
        while not stop.is_set():
            # A stall goes on until something is confirmed, whatever is tried meanwhile.
            if not self._behind.since:
                self.status.enter(State.STARTING)
            try:
                await self._store.open()
                await self._ensure_alone(stop)
                if await self._hold(stop):
                    await self._run_held(stop)
            except Fenced:
                self._fenced = True
                self.status.fenced += 1
                raise
            finally:
                self.status.give_up()
                await self._lock.release()

    async def _run_held(self, stop: asyncio.Event) -> None:
        """Until `stop`, or until the lock is wanted elsewhere: both end in order."""
        halt = asyncio.Event()
        async with beside({"stop": stop.wait(), "asked away": self._away()}) as waits:
            for wait in waits.values():
                wait.add_done_callback(lambda _: halt.set())
            await self._run_moving(halt)

    async def _away(self) -> None:
        self._log.info("gives the destination away", why=await self._lock.asked_away())

    async def _run_moving(self, halt: asyncio.Event) -> None:
        """Runs, and runs again from where a policy has moved a lost position to."""
        moves = 0
        while True:
            try:
                await self._run(halt)
                return
            except PositionLost as lost:
                moves += 1
                if moves > _MOVES or not await self._move(lost):
                    raise

    async def _run(self, stop: asyncio.Event) -> None:
        """From the stored position to the end of the stream."""
        self._unconfirmed = self._loaded = False
        stored: Stored | None = None
        if not self._settings.exactly_once:  # there the truth can be read only once the sink is open
            # Also while the sink is away it matters how long the source keeps the binlog that we need.
            stored = await self._note_stored(self._store)
        parked = self._parts.parked
        parking = Parking(self._settings.failed, parked, self.name, self.status.note_parked) if parked else None
        async with delivering(self._parts, self._lock.lease, parking) as delivery:
            store = delivery.store
            await ensure_delivered(self.name, self._parts.former_parked)
            stored = stored or await self._note_stored(store)
            entries = await store.schema_entries(self.name)
            source = await _unless(stop, lambda: self._open(stored, entries))
            if source is None:
                return
            companion = self._companion()
            try:
                guard = await self._begin(store, stored, companion)
                guard = await self._store_start(store, stored, source, guard)
                if parking is not None:
                    await parking.open(guard)
                await self._stream(source, delivery, guard, companion, stop)
            finally:
                await companion.close()
                await source.close()

    async def _note_stored(self, store: StateStore) -> Stored:
        """Reads what is stored, and keeps in mind which version of it was seen."""
        stored = await store.load(self.name)
        if stored.version != self._version:  # moved by somebody: what waited may not come again
            self._behind.since = 0.0
        self._version, self.status.position, self._loaded = stored.version, stored.position, True
        return stored

    def _companion(self) -> Companion:
        return Companion(self._source.settings, self._settings.heartbeat, self.name, self._daemon.node, self.status)

    async def _begin(self, store: StateStore, stored: Stored, companion: Companion) -> Guard:
        """A new epoch, above that of our row on the source too: a lost state store must not lead back to old ones."""
        above = await companion.stored_epoch()
        guard = await store.begin_epoch(self.name, above=above, tenure=self._lock.tenure)
        if guard.version != stored.version:
            raise Fenced(f"the position of {self.name} was moved while its source was opened")
        self._version = guard.version
        self.status.epoch = companion.epoch = guard.epoch
        return guard

    async def _stream(
        self,
        source: OpenSource,
        delivery: Delivery,
        guard: Guard,
        companion: Companion,
        stop: asyncio.Event,
    ) -> None:
        stream = Stream(
            self._settings,
            self._daemon,
            self.status,
            fmt=self._parts.new_format(),
            source=source,
            delivery=delivery,
            guard=guard,
            companion=companion,
            behind=self._behind,
        )
        try:
            await stream.run(stop)
        finally:
            self._version, self._unconfirmed = stream.guard.version, stream.unconfirmed

    # -- the source -----------------------------------------------------------------------------------------------

    async def _open(self, stored: Stored, entries: Sequence[dict[str, Any]]) -> OpenSource:
        before = self._source.settings
        source = await self._source.open(stored.position, last_pos=stored.last_pos, entries=entries)
        if source.address != (tried := f"{before.host}:{before.port}"):
            self._log.warning("another address of the source is used", address=source.address, before=tried)
        self.status.source_address, self.status.source_uuid = source.address, source.start.server_uuid
        self.status.server_id = source.server_id
        return source

    async def _store_start(self, store: StateStore, stored: Stored, source: OpenSource, guard: Guard) -> Guard:
        """The first start, so that a crash before the first change does not begin elsewhere; and a start that passes
        over a divergence, with what it gives up."""
        if stored.position is not None and source.gap is None:
            return guard
        entries = source.take_entries()
        if source.gap is None:
            guard = await store.commit(self.name, guard, StateChange(source.start, entries))
            self.status.position = source.start
            return guard
        return await self._store_move(store, guard, source.start, entries, source.gap)

    # -- a lost place ---------------------------------------------------------------------------------------------

    async def _move(self, lost: PositionLost) -> bool:
        """What `on_position_lost` says; whether the position was moved. Not at once while something that was read waits
        for confirmation, because the next attempt may be able to read it again."""
        policy, stored = self._settings.source.on_position_lost, await self._store.load(self.name)
        if policy == "fail" or stored.position is None or self._unconfirmed:
            return False
        move = await relocate_by_policy(self._source.settings, policy, lost, stored.position)
        if move is None:
            return False
        store = self._parts.leased_store(self._lock.lease)
        guard = await store.begin_epoch(self.name, tenure=self._lock.tenure)
        if guard.version != stored.version:
            raise Fenced(f"the position of {self.name} was moved while a policy looked where to go on")
        for note in move.notes:
            self._log.warning("the move of the position", note=note)
        await self._store_move(store, guard, move.position, move.entries, move.gap)
        return True

    async def _store_move(
        self, store: StateStore, guard: Guard, position: Position, entries: tuple[dict[str, Any], ...], gap: Gap
    ) -> Guard:
        """Stores a policy's move, and tells everywhere what it gives up."""
        change = StateChange(position, entries, actor="policy", details={"gap": gap.to_dict()})
        guard = await store.commit(self.name, guard, change)
        self._version, self.status.position = guard.version, position
        self._behind.since = 0.0  # what waited is given up
        self.status.gap = gap
        self.status.gaps[gap.reason] = self.status.gaps.get(gap.reason, 0) + 1
        self._log.error("the position was moved by a policy", gap=str(gap), **gap.to_dict())
        return guard

    # -- the lock -------------------------------------------------------------------------------------------------

    async def _floor(self) -> int:
        """The highest epoch that is known outside the lock; a source that does not answer is looked at again later."""
        stored, row, companion = (await self._store.load(self.name)).epoch, 0, self._companion()
        try:
            async with asyncio.timeout(_FLOOR_LIMIT):
                row = await companion.stored_epoch()
        except TimeoutError:
            pass  # the row is asked for again before the first beat
        finally:
            await companion.close()
        return max(stored, row)

    async def _ensure_alone(self, stop: asyncio.Event) -> None:
        """After somebody fenced us out although we held the lock: stays away as long as he shows signs of life, or the
        two would fence each other for ever. Raises SplitBrain. A lock that all share makes this needless."""
        if not self._fenced or self._lock.shared:
            return
        before, wait = await self._signs(), 2 * self._settings.heartbeat.interval + _SIGNS_MARGIN
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await stop.wait()
        after = await self._signs()
        if after != before:
            who = f"node {after[1].node}" if after[1] is not None else "another daemon"
            raise SplitBrain(
                f"{who} runs {self.name} too, and under a higher epoch",
                remedy="stop one of the two, or let them share a [zookeeper]",
            )
        self._fenced = False

    async def _signs(self) -> tuple[int, Heartbeat | None]:
        """What changes while somebody runs the destination: the version of what is stored, and the heartbeat row."""
        companion = self._companion()
        try:
            return (await self._store.load(self.name)).version, await companion.stored_beat()
        finally:
            await companion.close()

    async def _hold(self, stop: asyncio.Event) -> bool:
        """Waits for the lock as a standby; False when told to stop before it came."""
        if not stop.is_set() and not await self._lock.try_acquire(self._floor):
            self._behind.since = 0.0  # whoever runs it sees to what waits
            self.status.stand_by()
            standby = Standby(self._settings, self._source.settings, self._parts, self.status, self._log)
            if not await standby.wait(self._floor, stop):
                return False
        if stop.is_set():
            return False
        self.status.take_over(self._lock.lease)
        return True


async def _unless(stop: asyncio.Event, opening: Callable[[], Awaitable[OpenSource]]) -> OpenSource | None:
    """What is opened; None, and nothing is open, when a stop came first: neither a server that does not answer nor a
    long search in its binlogs holds up the end."""
    opened: OpenSource | None = None

    async def open_it() -> None:
        nonlocal opened
        opened = await opening()

    ended: dict[str, Any] = {}
    try:
        ended = await first({"open": open_it(), "stop": stop.wait()})
    finally:
        if "open" not in ended and opened is not None:
            await opened.close()  # it came to its end in spite of us
    return opened if "open" in ended else None
