"""Where one run's messages go and its position is kept: its sink, made anew when the lease lapsed, and its store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headrace.cluster.watchdog import WATCHDOG, Cover
from headrace.destination.parts import Parts
from headrace.lease import Lease
from headrace.parking.parking import Parking
from headrace.ports.sink import Sink
from headrace.ports.state import StateStore

_PROOF_LIMIT = 10.0
"""Seconds."""


class Delivery:
    """Owns the sink: whoever ends a run ends it here. `store` is the one to use as long as the run lasts."""

    def __init__(self, parts: Parts, lease: Lease, parking: Parking | None = None) -> None:
        self._parts, self.lease, self.parking = parts, lease, parking
        self.sink = parts.new_sink(lease, parking)
        self.resending: Sink | None = None
        """The sink while messages that were set aside may be sent again through it: from its start to its end."""
        self._cover: Cover | None = None

    @property
    def store(self) -> StateStore:
        """The store of the run: the destination's, unless the sink keeps the position itself."""
        return self.sink.store or self._parts.store

    async def start(self) -> None:
        """Connects. Raises SinkError, Fenced or LeaseLapsed; the sink is ended then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROOF_LIMIT):  # a lock that has just been taken may wait for its first proof
                await self.lease.proved()
        self.lease.check()
        try:
            await self.sink.start()
        except BaseException:
            await self.abort()
            raise
        self.resending = self.sink

    def hand_over(self) -> None:
        """From here on the sink may hold what could still leave, so the process ends unless somebody aborts in time
        after a lapse. Not before: nobody looks at the lease while a source is opened, and nothing is lost by it."""
        if self._cover is None:
            self._cover = WATCHDOG.cover(self.lease)

    async def renew(self) -> None:
        """A new sink after abort(); only for one that does not keep the position. Raises SinkError."""
        self.sink = self._parts.new_sink(self.lease, self.parking)
        await self.start()

    async def rest(self, *, idle: bool) -> None:
        """Nothing more is handed over in this run. What is not confirmed by now is cut, because nobody looks at the
        lease any more; an idle sink can do no harm, however long the end takes."""
        self.resending = None
        if idle:
            self._uncover()
        else:
            await self.abort()

    async def abort(self) -> None:
        """Cuts everything: after it returns nothing more leaves. Never raises."""
        self.resending = None
        await self.sink.abort()
        self._uncover()

    async def close(self) -> None:
        """Ends in order after the last confirmation."""
        self.resending = None
        await self.sink.close()
        self._uncover()

    def _uncover(self) -> None:
        cover, self._cover = self._cover, None
        if cover is not None:
            WATCHDOG.uncover(cover)


@contextlib.asynccontextmanager
async def delivering(parts: Parts, lease: Lease, parking: Parking | None) -> AsyncIterator[Delivery]:
    """A started delivery, which is cut off when what is done with it fails, and ended in order when it does not."""
    delivery = Delivery(parts, lease, parking)
    await delivery.start()
    try:
        yield delivery
    except BaseException:
        await delivery.abort()
        raise
    await delivery.close()
