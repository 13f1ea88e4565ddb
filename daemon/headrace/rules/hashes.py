"""Partitions from keys: Canal's hash for users who must keep their partitions, and that of Kafka's own clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct

_LIMIT = 1 << 31
_MASK = 0xFFFFFFFF
_SHORT = 24
"""Characters up to which a growing number costs less than truncating it to 32 bits at each step."""


def java_string_hash(text: str) -> int:
    """Returns `String.hashCode` of Java: the sum of unit * 31**(units after it) over the UTF-16 units, signed 32
    bits."""
    value = 0
    if text.isascii():
        units: Iterable[int] = text.encode()
    else:
        raw = text.encode("utf-16-le", "surrogatepass")
        units = Struct(f"<{len(raw) // 2}H").unpack(raw)
    if len(text) <= _SHORT:
        for unit in units:
            value = value * 31 + unit
        value &= _MASK
    else:
        for unit in units:
            value = (value * 31 + unit) & _MASK
    return value - (1 << 32) if value >= _LIMIT else value


_name_hash = lru_cache(maxsize=10_000)(java_string_hash)


def canal_partition(values: Sequence[str | None], partitions: int, *, database: str | None = None) -> int:
    """Returns the partition of a row by the texts of its key columns, as Canal's `MQMessageUtils.messagePartition`
    does.

    The hashes of the texts are combined by exclusive or, so their order does not matter; NULL counts as the empty text,
    which hashes to 0. `database` is the schema's name, which is included unless `canal.mq.database.hash` is false (None
    here)."""
    value = 0 if database is None else _name_hash(database)
    for text in values:
        if text:
            value ^= java_string_hash(text)
    # Java writes Math.abs(Math.abs(hash) % n) because Math.abs(Integer.MIN_VALUE) is negative; without that limit of
    # 32 bits the two are one
    return abs(value) % partitions


def canal_table_partition(table: str, partitions: int) -> int:
    """Returns the partition of a whole table in Canal: by its bare name, in MySQL's case, without the schema."""
    return abs(_name_hash(table)) % partitions


_FEW = 32
"""Bytes of a key that one number may contain: with more, the cost of the multiplications would grow with the square of
its length."""


def murmur2(keys: Iterable[bytes]) -> list[int]:
    """Returns Murmur 2 with Kafka's seed of each key, unsigned 32 bits
    (`org.apache.kafka.common.utils.Utils.murmur2`)."""
    hashes = []
    for data in keys:
        length = len(data)
        value = 0x9747B28C ^ length
        if length > _FEW:
            for word in Struct(f"<{length >> 2}I").unpack_from(data):
                word = word * 0x5BD1E995 & 0xFFFFFFFF
                value = (value * 0x5BD1E995 ^ (word ^ word >> 24) * 0x5BD1E995) & 0xFFFFFFFF
            length &= 3
            rest = int.from_bytes(data[-length:], "little") if length else 0
        else:
            rest = int.from_bytes(data, "little")
            while length > 3:
                word = rest * 0x5BD1E995 & 0xFFFFFFFF  # the lowest four bytes determine the product's lowest four
                value = (value * 0x5BD1E995 ^ (word ^ word >> 24) * 0x5BD1E995) & 0xFFFFFFFF
                rest >>= 32
                length -= 4
        if length:
            value = (value ^ rest) * 0x5BD1E995 & 0xFFFFFFFF
        value = (value ^ value >> 13) * 0x5BD1E995 & 0xFFFFFFFF
        hashes.append(value ^ value >> 15)
    return hashes


def kafka_partitions(keys: Iterable[bytes], partitions: int) -> list[int]:
    """Returns the partition that Kafka's default partitioner assigns to each key: `toPositive(murmur2(key)) %
    partitions`."""
    return [(value & 0x7FFFFFFF) % partitions for value in murmur2(keys)]


def kafka_partition(key: bytes, partitions: int) -> int:
    """Returns the same for one key."""
    return kafka_partitions((key,), partitions)[0]
