"""What a partition knows of the producers that write to it: idempotence as KIP-98 and KIP-360 describe it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sim.kafka import codes
from sim.kafka.records import Batch

_KEPT = 5
"""How many batches of a producer a broker remembers to recognize duplicates."""
_HIGHEST_SEQUENCE = 2**31 - 1
_NOTHING = -1


@dataclass(slots=True)
class ProducerState:
    """One producer id in one partition."""

    epoch: int = _NOTHING
    transaction: int = _NOTHING
    """The first offset of its open transaction; -1 without one."""
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """First and last sequence number and base offset of its last batches."""

    def duplicate(self, batch: Batch) -> int | None:
        """Returns the base offset under which the same batch is already stored; None for a new one."""
        if batch.epoch == self.epoch:
            for first, last, base in self.batches:
                if first == batch.sequence and last == batch.last_sequence:
                    return base
        return None

    def refusal(self, batch: Batch) -> int:
        """Returns the error code for a client's batch; 0 if it comes next.

        A producer that is unknown in the partition may begin with any sequence number."""
        if batch.epoch < self.epoch:
            return codes.INVALID_PRODUCER_EPOCH
        if self.epoch == _NOTHING:
            return codes.NONE
        if batch.epoch != self.epoch:
            return codes.NONE if batch.sequence == 0 else codes.OUT_OF_ORDER_SEQUENCE_NUMBER
        last = self.batches[-1][1] if self.batches else _NOTHING
        if batch.sequence == last + 1 or (batch.sequence == 0 and last == _HIGHEST_SEQUENCE):
            return codes.INVALID_TXN_STATE if self.transaction >= 0 and not batch.transactional else codes.NONE
        return codes.OUT_OF_ORDER_SEQUENCE_NUMBER

    def add(self, batch: Batch) -> None:
        """Notes a batch of data that was stored."""
        if batch.epoch != self.epoch:
            self.epoch = batch.epoch
            self.batches.clear()
        self.batches.append((batch.sequence, batch.last_sequence, batch.base))

    def end(self, epoch: int) -> None:
        """Notes the end of the transaction. A higher epoch in the marker fences the former producer."""
        if epoch > self.epoch:
            self.epoch = epoch
            self.batches.clear()
        self.transaction = _NOTHING
