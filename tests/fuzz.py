"""Damages real binlogs in every way that bytes can be wrong, and feeds them to the decoder: a clean error, or none.

usage: python -m tests.fuzz [INPUTS] [SEED]      prints a line every 10,000 inputs; stops at the first bad one
       python -m tests.fuzz make                 writes the seed files anew, from real servers
"""

from __future__ import annotations

import random
import resource
import signal
import struct
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import zstandard

from headrace.errors import HeadraceError
from headrace.model import Position
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.wire.binlog_file import packet
from headrace.ports.source import Receiver

SEEDS = Path(__file__).parent / "fixtures" / "binlogs"
LIMIT_SECONDS = 5
"""CPU time; an input that takes longer hangs."""
LIMIT_BYTES = 2 << 30
"""Address space; a length that lies must not be believed before the bytes are there."""
_NASTY = (0, 1, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)

Event = bytes
"""A whole event: header, body, checksum."""


def read_events(path: Path) -> list[Event]:
    """The events of a binlog file."""
    data, at, events = path.read_bytes(), 4, []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + 9)
        events.append(data[at : at + size])
        at += size
    return events


def groups(events: list[Event]) -> list[list[Event]]:
    """Transactions and lone statements: each begins with a GTID event."""
    found: list[list[Event]] = []
    for event in events[1:]:
        if event[4] in (33, 34, 42, 162) or not found:
            found.append([])
        found[-1].append(event)
    return found


class Mutator:
    """Damaged streams out of seed files, the same for the same random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        files = sorted(SEEDS.glob("*.bin"))
        assert files, f"no seed files in {SEEDS}"
        self.seeds = [(events[0], groups(events)) for events in map(read_events, files)]

    def stream(self) -> bytes:
        """The packets of one input."""
        rng = self.rng
        head, found = rng.choice(self.seeds)
        start = rng.randrange(len(found))
        chosen = [event for group in found[start : start + rng.choice((1, 1, 2, 4))] for event in group]
        if rng.random() < 0.2:  # a table that other events describe, too
            chosen = rng.choice(found) + chosen
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            chosen = self._damaged(chosen)
        if rng.random() < 0.6:  # so that the table schema is known where the binlog does not describe it
            chosen = [event for group in found[:4] for event in group] + chosen
        data = b"".join(packet(event) for event in [head, *chosen])
        if rng.random() < 0.1:
            data = self._flipped(data, 1 + rng.randrange(3))
        if rng.random() < 0.05:
            data = data[: rng.randrange(len(data) + 1)]
        return data

    def _damaged(self, events: list[Event]) -> list[Event]:
        rng, events = self.rng, list(events)
        what, i = rng.random(), rng.randrange(len(events))
        if what < 0.04:
            del events[i]
        elif what < 0.08:
            events.insert(rng.randrange(len(events) + 1), events[i])
        elif what < 0.12:
            rng.shuffle(events)
        elif what < 0.17:  # another kind with this body
            events[i] = self._sealed(
                events[i][:4] + bytes([rng.choice((*range(45), *range(158, 172)))]) + events[i][5:-4]
            )
        elif events[i][4] == 40 and what < 0.6:
            events[i] = self._payload(events[i])
        else:
            events[i] = self._sealed(self._body(events[i][:-4]), sound=rng.random() < 0.97)
        return [event for event in events if len(event) >= 19] or [self._sealed(bytes(19))]

    def _body(self, event: bytes, head: int = 19) -> bytes:
        rng = self.rng
        body = bytearray(event[head:])
        what = rng.random()
        if not body or what < 0.1:
            body += bytes(rng.choice(_NASTY) for _ in range(rng.randrange(1, 9)))
        elif what < 0.25:
            del body[rng.randrange(len(body)) :]
        elif what < 0.35:
            at = rng.randrange(len(body))
            del body[at : at + rng.randrange(1, 9)]
        elif what < 0.45:
            at = rng.randrange(len(body))
            body[at:at] = bytes(rng.choice(_NASTY) for _ in range(rng.randrange(1, 9)))
        elif what < 0.75:
            for _ in range(rng.randrange(1, 4)):
                body[rng.randrange(len(body))] = rng.choice(_NASTY)
        else:
            body = bytearray(self._flipped(bytes(body), rng.randrange(1, 4)))
        return event[:head] + bytes(body)

    def _payload(self, event: Event) -> Event:
        """Damage inside of a compressed transaction, compressed again."""
        body = event[19:-4]
        at = body.find(b"\x28\xb5\x2f\xfd")
        try:
            inner = zstandard.ZstdDecompressor().decompressobj().decompress(body[at:])
        except zstandard.ZstdError:  # damaged already
            return self._sealed(self._body(event[:-4]))
        packed = zstandard.ZstdCompressor().compress(self._body(inner, 0) or b"\0")
        size = len(inner) if self.rng.random() < 0.5 else self.rng.choice((0, 1, 1 << 31, (1 << 64) - 1))
        fields = b"\x02\x01\0" + b"\x03\x09\xfe" + struct.pack("<Q", size)
        return self._sealed(event[:19] + fields + b"\x01\x09\xfe" + struct.pack("<Q", len(packed)) + b"\0" + packed)

    def _flipped(self, data: bytes, bits: int) -> bytes:
        changed = bytearray(data)
        for _ in range(bits if changed else 0):
            changed[self.rng.randrange(len(changed))] ^= 1 << self.rng.randrange(8)
        return bytes(changed)

    def _sealed(self, event: bytes, *, sound: bool = True) -> Event:
        """With its length and its checksum right again, unless it is to have a wrong one."""
        event = event[:9] + struct.pack("<I", len(event) + 4) + event[13:]
        return event + struct.pack("<I", zlib.crc32(event) ^ (0 if sound else 1))


def try_one(data: bytes) -> str:
    """Feeds one input; "ok", or the beginning of the error. Raises whatever is not an error of headrace's own."""
    nothing: list[Any] = []
    history = SchemaHistory(
        lambda schema, table: True, mariadb=b"MariaDB" in data[:120], version="9.7.4", lower_case_table_names=0
    )
    decoder = Decoder(
        DumpStart(Position("server", "mysql-bin.000001", 4), checksums=True),
        Receiver(rows=nothing.append, statement=nothing.append, mark=nothing.append),
        captures=lambda schema, table: True,
        history=history,
        options=DecoderOptions(dml_queries=True, dcl=True, max_spool=1 << 20),
    )
    try:
        at, more = 0, True
        while more:
            at, more = decoder.feed(data, at, lambda: False)
            if decoder.described.wanted is not None:
                decoder.described.learned("it was never read")
                more = True
        decoder.position()
        return "ok"
    except HeadraceError as error:
        return str(error).partition(": ")[2][:40]
    finally:
        decoder.close()


def run(inputs: int, seed: int, *, say: bool = False) -> Counter[str]:
    """Tries that many inputs. Raises AssertionError that holds the bad one."""
    mutator, results, begun = Mutator(random.Random(seed)), Counter[str](), time.monotonic()
    signal.signal(signal.SIGVTALRM, _hangs)
    for number in range(1, inputs + 1):
        data = mutator.stream()
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)
        try:
            results[try_one(data)] += 1
        except BaseException as error:
            raise AssertionError(f"input {number} of seed {seed}: {error!r}\n{data.hex()}") from error
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if say and not number % 10_000:
            print(f"{number} inputs, {time.monotonic() - begun:.0f} s, {len(results)} outcomes", flush=True)
    return results


def _hangs(*_: Any) -> None:
    raise TimeoutError(f"more than {LIMIT_SECONDS} s")


def main() -> None:
    """The command line."""
    if sys.argv[1:] == ["make"]:
        from tests.fuzz_seeds import make

        make(SEEDS)
        return
    inputs, seed = int(sys.argv[1]) if sys.argv[1:] else 100_000, int(sys.argv[2]) if sys.argv[2:] else 1
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    results = run(inputs, seed, say=True)
    for text, count in results.most_common(40):
        print(f"{count:8d}  {text}")


if __name__ == "__main__":
    main()
