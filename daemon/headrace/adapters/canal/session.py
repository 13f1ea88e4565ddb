"""A client's requests to a destination: entries in batches, acknowledged in order or rolled back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from headrace import runtime
from headrace.adapters.canal.store import EntryStore
from headrace.canal_wire import canal_pb2 as pb
from headrace.canal_wire.wire import entries_in
from headrace.errors import LeaseLapsed
from headrace.lease import Lease
from headrace.rules.patterns import Pattern, compile_filter
from headrace.tasks import set_within

_LONGEST_WAIT = 3600.0
"""Maximum seconds of one GET."""
_MOST_BATCHES = 1_000
"""Maximum number of unacknowledged batches."""
_MOST_BYTES = 128 << 20
"""Maximum bytes of unacknowledged batches, which are in memory: beyond it a client gets no more."""
_MOST_ENTRIES = 100_000
"""Maximum number of entries of one batch."""
_EVERYTHING = frozenset({"", ".*", ".*\\..*", ".*\\\\..*"})


class Refused(Exception):
    """The client's request can't be granted; the text is for it."""


@dataclass(slots=True)
class _Batch:
    """The entries from the number `begin` to before `end`, of `size` bytes."""

    begin: int
    end: int
    size: int


class Subscription:
    """A destination as its one client sees it. The last subscriber is the client; what an earlier one did not
    acknowledge is sent again."""

    def __init__(self, destination: str, store: EntryStore, lease: Lease) -> None:
        self.destination, self._store, self._lease = destination, store, lease
        self.client = ""
        """The address of the client, "" for none."""
        self.on_subscribed: Callable[[str], None] = lambda _filter: None
        """Called with the filter of each client that subscribes."""
        self.given_at = 0.0
        """When entries were last given, on the monotonic clock."""
        self._filter: Sequence[Pattern] = ()
        self._batches: dict[int, _Batch] = {}
        """The unacknowledged batches by id, in order."""
        self._number = runtime.now_us() // 1000
        """Ids increase across restarts and takeovers, so that an acknowledgement can't refer to a different batch."""

    def subscribe(self, client: str, filter_: str) -> None:
        """Makes `client` the one that is served. Raises Refused for an invalid filter."""
        try:
            patterns = () if filter_.strip() in _EVERYTHING else compile_filter(filter_)
        except ValueError as error:
            raise Refused(f"the filter is not understood: {error}") from error
        self.serve(client)
        self._filter = patterns
        self.on_subscribed(filter_)

    def serve(self, client: str) -> None:
        """Makes another client the one that is served; "" is none."""
        self.client = client
        self._back_to(0)
        self._store.grown.set()

    def leave(self, client: str) -> None:
        """Records that a client has disconnected."""
        if self.client == client:
            self.serve("")

    def _check(self, client: str) -> None:
        if not self.client:
            raise Refused(f"subscribe to {self.destination} first")
        if self.client != client:
            raise Refused(f"{self.destination} is served to {self.client}, which subscribed later")

    async def get(self, client: str, request: pb.Get) -> tuple[int, list[memoryview]]:
        """Returns the next batch, in pieces of several entries; (-1, []) if none comes in time."""
        self._check(client)
        most = min(request.fetch_size if request.fetch_size > 0 else 1_000, _MOST_ENTRIES)
        timeout = request.timeout if request.HasField("timeout") else -1
        if timeout >= 0 and self._store.end - self._store.given < most:
            await self._wait(client, most, _seconds(timeout, request.unit if request.HasField("unit") else 2))
        if len(self._batches) >= _MOST_BATCHES or sum(one.size for one in self._batches.values()) > _MOST_BYTES:
            return -1, []
        await self._store.load(most)
        self._check(client)  # nothing waits from here on, so nobody else can subscribe
        try:
            self._lease.check()
        except LeaseLapsed as error:
            raise Refused(f"{self.destination} can't be served: {error}") from error
        begin = self._store.given
        entries, size = self._store.take(most)
        if self._filter:
            entries = [entry for entry in chain.from_iterable(map(entries_in, entries)) if self._wanted(entry)]
        if not entries:
            self._pass()
            return -1, []
        self._number += 1
        self._batches[self._number] = _Batch(begin, self._store.given, size)
        self.given_at = runtime.monotonic()
        return self._number, entries

    async def _wait(self, client: str, most: int, seconds: float) -> None:
        """Waits until there are `most` entries, the time is over, or another client has subscribed."""
        deadline = runtime.monotonic() + seconds
        while self._store.end - self._store.given < most and self.client == client:
            remaining = deadline - runtime.monotonic()
            if remaining <= 0:
                return
            self._store.grown.clear()
            await set_within(self._store.grown, remaining)

    def _pass(self) -> None:
        """Acknowledges entries that the filter leaves out, with those before them."""
        if self._batches:
            self._batches[next(reversed(self._batches))].end = self._store.given
        else:
            self._store.acknowledge(self._store.given)

    def _wanted(self, entry: memoryview) -> bool:
        header = pb.Entry.FromString(pb.Messages.FromString(bytes(entry)).messages[0]).header
        if not header.schema_name or not header.table_name:
            return True
        name = f"{header.schema_name}.{header.table_name}"
        return any(pattern.fullmatch(name) for pattern in self._filter)

    def acknowledge(self, client: str, number: int) -> None:
        """Acknowledges a batch, which must be the first unacknowledged one."""
        self._check(client)
        if number == -1:  # an answer without entries has it
            return
        first = next(iter(self._batches), None)
        if number not in self._batches:
            raise Refused(f"batch {number} of {self.destination} is not known: it was acknowledged or rolled back")
        if number != first:
            raise Refused(f"batch {number} of {self.destination} comes before its turn: {first} is the first")
        self._store.acknowledge(self._batches.pop(number).end)

    def roll_back(self, client: str, number: int) -> None:
        """Gives entries again: from a batch on, or with 0 all unacknowledged ones."""
        self._check(client)
        if number and number not in self._batches:
            raise Refused(f"batch {number} of {self.destination} is not known: it was acknowledged or rolled back")
        self._back_to(number)

    def _back_to(self, number: int) -> None:
        begin = self._batches[number].begin if number else self._store.acknowledged
        self._batches = {id_: one for id_, one in self._batches.items() if id_ < number}
        self._store.back(begin)


_UNITS = (1e-9, 1e-6, 1e-3, 1.0, 60.0, 3600.0, 86400.0)
"""Seconds of java.util.concurrent.TimeUnit, by its number."""


def _seconds(timeout: int, unit: int) -> float:
    """Returns how long a GET waits; 0 is without end."""
    factor = _UNITS[unit] if 0 <= unit < len(_UNITS) else 1e-3
    return min(timeout * factor, _LONGEST_WAIT) if timeout else _LONGEST_WAIT
