"""Record batches: headers are read and written here, records only when a checker asks for them.

The format is that of magic 2 in Kafka's manual, "Message Format", and KIP-98 for the control records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length after it, partition leader epoch, magic, CRC, attributes, last offset delta, first and maximum
timestamp, producer id, producer epoch, base sequence, number of records."""
_PLACE = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_CHECKED_FROM = 21
"""The CRC covers the attributes and what comes after them."""
_MAGIC = 2
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_HIGHEST_SEQUENCE = 2**31 - 1
NO_PRODUCER = -1


class Batch:
    """One record batch as it is stored. `next` is the offset after its last record."""

    __slots__ = (
        "base",
        "control",
        "data",
        "epoch",
        "last_sequence",
        "leader_epoch",
        "max_timestamp",
        "next",
        "producer_id",
        "sequence",
        "transactional",
    )

    def __init__(self, data: bytes) -> None:
        """Reads the header of a batch that has passed `fault_of`, or that the model wrote."""
        fields = _HEADER.unpack_from(data)
        self.base: int = fields[0]
        self.leader_epoch: int = fields[2]
        self.data = data
        self.next: int = fields[0] + fields[6] + 1
        self.transactional = bool(fields[5] & _TRANSACTIONAL)
        self.control = bool(fields[5] & _CONTROL)
        self.max_timestamp: int = fields[8]
        self.producer_id: int = fields[9]
        self.epoch: int = fields[10]
        self.sequence: int = fields[11]
        last = fields[11] + fields[6]
        self.last_sequence: int = last if last <= _HIGHEST_SEQUENCE else last - _HIGHEST_SEQUENCE - 1

    @property
    def count(self) -> int:
        """Returns how many offsets the batch takes."""
        return self.next - self.base

    def place(self, base: int, leader_epoch: int) -> None:
        """Writes the offset and the leader's epoch, which the CRC does not cover."""
        self.next += base - self.base
        self.base, self.leader_epoch = base, leader_epoch
        self.data = _PLACE.pack(base, len(self.data) - 12, leader_epoch) + self.data[16:]

    def commits(self) -> bool:
        """Returns whether a control batch commits its transaction; False if it aborts it."""
        return self.data[_HEADER.size + 8] == 1


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as a consumer sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    producer_epoch: int


def is_whole(data: bytes) -> bool:
    """Returns whether these bytes are one batch of magic 2 whose CRC is right."""
    size = len(data)
    if size < _HEADER.size or data[16] != _MAGIC or _LENGTH.unpack_from(data, 8)[0] != size - 12:
        return False
    (crc,) = struct.unpack_from(">I", data, 17)
    return bool(crc == calc_crc32c(memoryview(data)[_CHECKED_FROM:]))


def is_several(data: bytes) -> bool:
    """Returns whether these bytes are more than one batch, which a producer may not send (KIP-98)."""
    return len(data) >= _HEADER.size and 0 <= _LENGTH.unpack_from(data, 8)[0] < len(data) - 12


def marker(producer_id: int, epoch: int, timestamp: int, coordinator_epoch: int, *, commit: bool) -> Batch:
    """Returns the control batch that ends a transaction: one record with the version and type (0 abort, 1 commit) as
    key, and the version and coordinator's epoch as value."""
    record = struct.pack(">bbbbbhhbhib", 32, 0, 0, 0, 8, 0, commit, 12, 0, coordinator_epoch, 0)
    attributes = _TRANSACTIONAL | _CONTROL
    checked = struct.pack(">hiqqqhii", attributes, 0, timestamp, timestamp, producer_id, epoch, -1, 1) + record
    head = struct.pack(">qiibI", 0, 9 + len(checked), 0, _MAGIC, calc_crc32c(checked))
    return Batch(head + checked)


def records_of(batch: Batch) -> Iterator[Record]:
    """Decodes the records of a batch."""
    decoded = MemoryRecords(batch.data).next_batch()
    for one in decoded:
        yield Record(one.offset, one.timestamp, one.key, one.value, tuple(one.headers), batch.producer_id, batch.epoch)
