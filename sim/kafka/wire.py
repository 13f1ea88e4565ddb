"""Requests of the protocol that the model knows: their keys, versions and headers.

The versions are those that aiokafka 0.14 and the project's adapter choose with a broker of version 3.9. Layouts are
those of Kafka's protocol guide ("Protocol Messages"); KIP-482 has the flexible ones."""

from __future__ import annotations

import struct
from enum import IntEnum


class Api(IntEnum):
    """Keys of requests."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    DESCRIBE_CONFIGS = 32


VERSIONS: dict[int, tuple[int, int]] = {
    Api.PRODUCE: (7, 7),
    Api.FETCH: (11, 11),
    Api.LIST_OFFSETS: (3, 3),
    Api.METADATA: (5, 8),
    Api.FIND_COORDINATOR: (1, 1),
    Api.API_VERSIONS: (0, 0),
    Api.CREATE_TOPICS: (3, 3),
    Api.DELETE_TOPICS: (3, 3),
    Api.DELETE_RECORDS: (2, 2),
    Api.INIT_PRODUCER_ID: (0, 0),
    Api.ADD_PARTITIONS_TO_TXN: (0, 0),
    Api.END_TXN: (0, 0),
    Api.DESCRIBE_CONFIGS: (2, 2),
}
"""The lowest and highest version of each request. Of Metadata 5 and 8 are used: 8 by the check of rights."""
FLEXIBLE: tuple[int, ...] = (Api.DELETE_RECORDS,)
"""Requests whose headers, also those of their answers, end in tagged fields."""

HEADER = struct.Struct(">hhih")
"""Key, version, correlation id, length of the client's name."""
SIZE = struct.Struct(">i")
SHORT = struct.Struct(">h")
INT = struct.Struct(">i")


def text_at(frame: bytes, at: int) -> tuple[str | None, int]:
    """Returns a nullable string, and where what follows begins."""
    (length,) = SHORT.unpack_from(frame, at)
    at += 2
    return (None, at) if length < 0 else (frame[at : at + length].decode(), at + length)


def text(value: str) -> bytes:
    """Returns a string as it is encoded."""
    raw = value.encode()
    return SHORT.pack(len(raw)) + raw
