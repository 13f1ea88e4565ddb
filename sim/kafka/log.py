"""The log of one partition: batches, offsets, transactions, truncation and retention."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from sim.kafka.producers import ProducerState
from sim.kafka.records import NO_PRODUCER, Batch, Record, records_of

_BASE = attrgetter("base")


class Log:
    """The records that the leader has. Followers have a prefix of it."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.start = 0
        """The first offset that can be read."""
        self.end = 0
        """The offset of the next record."""
        self.high_watermark = 0
        """The end of what all in-sync replicas have: consumers see nothing after it."""
        self._segments: list[int] = []
        """The first offset of each segment."""
        self._segment_bytes, self._segment_began = 0, 0
        """Of the last one: its size, and the timestamp of its first batch."""
        self.producers: dict[int, ProducerState] = {}
        self.aborted: list[tuple[int, int, int]] = []
        """Producer id, first offset and offset of the marker of each aborted transaction, as in the aborted index."""
        self._open: dict[int, int] = {}
        """The first offset of each open transaction by producer id, in order of the offsets."""
        self._ended: list[tuple[int, int]] = []
        """First offset, and offset of the marker, of ended transactions whose marker is not below the high watermark
        yet."""

    @property
    def stable(self) -> int:
        """Returns the last stable offset: everything before it is decided, and on all in-sync replicas."""
        limit = self.high_watermark
        if self._open:
            limit = min(limit, next(iter(self._open.values())))
        if self._ended:
            limit = min(limit, min(first for first, _ in self._ended))
        return limit

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Returns whether the producer has an open transaction here."""
        state = self.producers.get(producer_id)
        return state is not None and state.transaction >= 0 and state.epoch == epoch

    def append(self, batch: Batch, leader_epoch: int, most_bytes: int, most_ms: int) -> None:
        """Stores a batch at the end. A segment holds `most_bytes`, and timestamps that are at most `most_ms` later than
        that of its first batch; else another one begins."""
        batch.place(self.end, leader_epoch)
        size = self._segment_bytes + len(batch.data)
        if not self._segment_bytes or size > most_bytes or batch.max_timestamp - self._segment_began > most_ms:
            self._segments.append(self.end)
            size, self._segment_began = len(batch.data), batch.max_timestamp
        self._segment_bytes = size
        self.batches.append(batch)
        self._take(batch)

    def _take(self, batch: Batch) -> None:
        self.end = batch.next
        producer_id = batch.producer_id
        if producer_id == NO_PRODUCER:
            return
        state = self.producers.get(producer_id)
        if state is None:
            state = self.producers[producer_id] = ProducerState()
        if batch.control:
            state.end(batch.epoch)
            first = self._open.pop(producer_id, None)
            if first is not None:
                self._ended.append((first, batch.base))
                if not batch.commits():
                    self.aborted.append((producer_id, first, batch.base))
            return
        state.add(batch)
        if batch.transactional and state.transaction < 0:
            state.transaction = self._open[producer_id] = batch.base

    def advance(self, offset: int) -> bool:
        """Moves the high watermark; returns whether it moved."""
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        if self._ended:
            self._ended = [one for one in self._ended if one[1] >= offset]
        return True

    def truncate(self, offset: int) -> None:
        """Removes the batches that reach beyond an offset, and what is known of producers from them."""
        while self.batches and self.batches[-1].next > offset:
            self.batches.pop()
        kept = self.batches
        self.producers, self.aborted, self._open, self._ended = {}, [], {}, []
        self.end = max(self.start, kept[-1].next if kept else self.start)
        self.start = min(self.start, self.end)
        self.high_watermark = min(self.high_watermark, self.end)
        for batch in kept:
            self._take(batch)
        self._ended = [one for one in self._ended if one[1] >= self.high_watermark]
        while self._segments and self._segments[-1] >= self.end:
            self._segments.pop()
        last = [one for one in kept if self._segments and one.base >= self._segments[-1]]
        self._segment_bytes = sum(len(one.data) for one in last)
        self._segment_began = last[0].max_timestamp if last else 0

    def forget(self, offset: int) -> None:
        """Moves the start of the log up to an offset, as retention and DeleteRecords do; batches before it go."""
        self.start = max(self.start, min(offset, self.high_watermark))
        count = 0
        while count < len(self.batches) and self.batches[count].next <= self.start:
            count += 1
        del self.batches[:count]
        self.aborted = [one for one in self.aborted if one[2] >= self.start]

    def index(self, offset: int) -> int:
        """Returns the index of the batch with an offset, or of the first one after it."""
        found = bisect_right(self.batches, offset, key=_BASE)
        return found - 1 if found and self.batches[found - 1].next > offset else found

    def read(self, offset: int, limit: int, most: int, *, first: bool = True) -> list[bytes]:
        """Returns whole batches from an offset on that begin before `limit`, of `most` bytes, and of one segment;
        `first`: one at least, however large (KIP-74). A broker may add a part of the next batch, which clients
        ignore."""
        found, size, batches = list[bytes](), 0, self.batches
        begin = self.index(offset)
        if begin < len(batches):
            segment = bisect_right(self._segments, batches[begin].base)
            limit = min(limit, self._segments[segment]) if segment < len(self._segments) else limit
        for number in range(begin, len(batches)):
            batch = batches[number]
            size += len(batch.data)
            if batch.base >= limit or (size > most and not (first and not found)):
                break
            found.append(batch.data)
        return found

    def aborted_in(self, offset: int, limit: int) -> list[tuple[int, int]]:
        """Returns producer id and first offset of the aborted transactions with records in a range."""
        return [(producer, first) for producer, first, marker in self.aborted if marker >= offset and first < limit]

    def find_time(self, timestamp: int, limit: int) -> tuple[int, int] | None:
        """Returns timestamp and offset of the first record at a time or later, before `limit`."""
        for batch in self.batches:
            if batch.base >= limit:
                break
            if batch.max_timestamp >= timestamp and not batch.control:
                for record in records_of(batch):
                    if record.timestamp >= timestamp and record.offset >= self.start:
                        return record.timestamp, record.offset
        return None

    def records(self, start: int, *, committed: bool) -> Iterator[Record]:
        """Decodes the records from an offset on. `committed`: those that a reader of committed data gets; otherwise
        all that are stored, also above the high watermark."""
        aborted = self.aborted if committed else []
        limit = self.stable if committed else self.end
        for number in range(self.index(start), len(self.batches)):
            batch = self.batches[number]
            if batch.base >= limit:
                return
            if batch.control or (batch.transactional and _covers(aborted, batch)):
                continue
            for record in records_of(batch):
                if record.offset >= max(start, self.start):
                    yield record


def _covers(aborted: list[tuple[int, int, int]], batch: Batch) -> bool:
    return any(one[0] == batch.producer_id and one[1] <= batch.base < one[2] for one in aborted)
