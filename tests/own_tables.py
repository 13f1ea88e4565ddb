"""headrace's own tables in a made binlog."""

from __future__ import annotations

import random
import struct
from dataclasses import replace

from headrace.ports.source import Heartbeat
from tests.made_binlog import Binlog

BEAT = Heartbeat("shop", 3, "node", 17, 1_700_000_000_000_000)
MINIMAL = b"\x01\x01\xe0" + b"\x02\x01\x2d"
"""Metadata as binlog_row_metadata = MINIMAL writes it: signs and the character set."""


def own_table(log: Binlog, name: bytes = b"heartbeat", *, metadata: bytes = MINIMAL, nulls: bytes = b"\0") -> None:
    body = struct.pack("<IHH", 9, 0, 1) + b"\x08headrace\0" + bytes([len(name)]) + name + b"\0"
    body += b"\x05\x0f\x08\x0f\x08\x08" + b"\x04" + struct.pack("<HH", 760, 760) + nulls + metadata
    log.event(19, body)


def image(heartbeat: Heartbeat) -> bytes:
    texts = [struct.pack("<H", len(text.encode())) + text.encode() for text in (heartbeat.destination, heartbeat.node)]
    return (
        b"\xe0"
        + texts[0]
        + struct.pack("<Q", heartbeat.epoch)
        + texts[1]
        + struct.pack("<QQ", heartbeat.sequence, heartbeat.written_us)
    )


def own_rows(log: Binlog, *images: bytes, kind: int = 30, columns: bytes = b"\x1f", count: int = 5) -> None:
    head = struct.pack("<IHHH", 9, 0, 1, 2) + bytes([count]) + columns * (2 if kind == 31 else 1)
    log.event(kind, head + b"".join(images))


def own_event(rng: random.Random, binlog: Binlog) -> None:
    """A change of one of them by a daemon of this destination or of another one, mostly a heartbeat."""
    name = rng.choice((b"heartbeat", b"heartbeat", b"heartbeat", b"watermark", b"signal"))
    beats = [replace(BEAT, destination=rng.choice(("shop", "other", "shop2"))) for _ in range(rng.choice((1, 1, 2)))]
    kind = rng.choice((30, 31, 31, 32))
    own_table(binlog, name)
    own_rows(binlog, *(image(beat) for beat in beats for _ in range(2 if kind == 31 else 1)), kind=kind)
