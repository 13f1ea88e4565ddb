"""Events that lie, with checksums that are right: each ends in an error of headrace's own, within a stated memory and
CPU time."""

from __future__ import annotations

import random
import resource
import signal
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zstandard

from tests import fuzz
from tests.examples import examples
from tests.made_binlog import RAW_SID, Binlog

MIB = 1 << 20
MEMORY, SECONDS = (8 * MIB, 150), (2.0, 50e-6)
"""What decoding may take: so much, and so much for each byte of the input. Statements take the most of both, by far: a
column of six bytes becomes an object."""
HUGE = b"\xfe" + struct.pack("<Q", 1 << 63)
"""A length as MySQL packs it."""


@contextmanager
def limits(seconds: float) -> Iterator[None]:
    """Ends what takes more CPU, or would take the machine's memory."""

    def late(*_: object) -> None:
        raise AssertionError(f"more than {seconds:.1f} s of CPU")

    handler, room = signal.signal(signal.SIGVTALRM, late), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 512 * MIB, room[1]))
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, room)


def outcome(data: bytes) -> str:
    """What becomes of an input: "ok", or the beginning of an error of headrace's own. Anything else is raised. It is
    read twice, because counting its memory takes many times as long."""
    with limits(SECONDS[0] + SECONDS[1] * len(data)):
        result = fuzz.try_one(data)
    tracemalloc.start()
    try:
        assert fuzz.try_one(data) == result
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY[0] + MEMORY[1] * len(data), f"{peak:,} bytes of memory for {len(data):,}"
    return result


@pytest.mark.hypothesis
def test_damage_of_every_kind_stays_within_the_bounds() -> None:
    mutator = fuzz.Mutator(random.Random(17))
    results = {outcome(mutator.stream()) for _ in range(examples(300))}
    assert len(results) > 10, "damage of many kinds is tried"


# -- values ----------------------------------------------------------------------------------------------------------


def table_map(kind: int, meta: bytes, *, columns: bytes = b"\x02", rest: bytes = b"") -> bytes:
    """The table shop.t with the columns `id` and `v`, which is of this kind."""
    body = struct.pack("<IHH", 7, 0, 1) + b"\x04shop\0\x01t\0" + columns + bytes([3, kind])
    known = b"\x01\x01\0" + b"\x02\x01\x3f" * (kind in (252, 140)) + b"\x04\x05\x02id\x01v" + b"\x08\x01\0"
    return body + bytes([len(meta)]) + meta + b"\x02" + (rest or known)


def row(value: bytes, *, columns: bytes = b"\x02\xff", kind: int = 30) -> tuple[int, bytes]:
    return kind, struct.pack("<IHHH", 7, 0, 1, 2) + columns + b"\xfc" + struct.pack("<i", 1) + value


def stream(*events: tuple[int, bytes]) -> bytes:
    """One transaction with these events."""
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    for kind, body in events:
        log.event(kind, body)
    log.event(16, bytes(8))
    return bytes(log.packets)


def written(kind: int, meta: bytes, value: bytes) -> bytes:
    return stream((19, table_map(kind, meta)), row(value))


def blob(text: bytes, said: int | None = None) -> bytes:
    """A LONGBLOB or JSON value; `said` is a length that is a lie."""
    return struct.pack("<I", len(text) if said is None else said) + text


def json(document: bytes) -> bytes:
    return written(245, b"\x04", blob(document))


def laughing(levels: int, members: int) -> bytes:
    """An array of arrays that all mean the same bytes: a text of members ** levels."""
    size = 4 + 3 * members
    level = struct.pack("<HH", members, size) + struct.pack("<BH", 2, size) * members
    return b"\x02" + level * levels + struct.pack("<HH", 0, 4)


def nested(depth: int) -> bytes:
    """An array in an array, and so on."""
    return b"\x03" + b"".join(struct.pack("<IIBI", 1, 13 * (depth - i), 3, 13) for i in range(depth)) + bytes(8)


def test_what_is_sound_is_read() -> None:
    """So that the lies below are noticed as what they are."""
    assert outcome(written(252, b"\x04", blob(b"text"))) == "ok"
    assert outcome(json(nested(50))) == "ok"
    assert outcome(json(laughing(1, 3))) == "ok"


@pytest.mark.parametrize(
    "data",
    {
        "a text that says 4 GiB": written(252, b"\x04", blob(b"x", 0xFFFFFFFF)),
        "a text that says one more": written(252, b"\x04", blob(b"text", 5)),
        "a JSON array of 4 billion": json(b"\x03" + struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)),
        "a JSON object of 65,535": json(b"\0" + struct.pack("<HH", 0xFFFF, 0xFFFF) + bytes(400)),
        "a JSON object whose keys are one": json(
            b"\x01" + struct.pack("<II", 5000, 90000) + struct.pack("<IH", 55008, 30000) * 5000 + bytes(60000)
        ),
        "JSON within itself": json(b"\x02" + struct.pack("<HH", 3, 13) + struct.pack("<BH", 2, 0) * 3),
        "JSON that means itself often": json(laughing(15, 40)),
        "JSON of a wide lie": json(laughing(2, 5_000)),
        "JSON deeper than MySQL's": json(nested(5_000)),
        "a JSON string with a length of 5 bytes": json(b"\x0c\xff\xff\xff\xff\x7fx"),
        "a JSON string whose length never ends": json(b"\x0c" + b"\xff" * 1000),
        "a DECIMAL(255,255) in JSON": json(b"\x0f\xf6\x02\xff\xff"),
        "an unknown kind of JSON": json(b"\x99abc"),
        "a DECIMAL(255,0)": written(246, b"\xff\0", bytes(8)),
        "a DECIMAL(1,255)": written(246, b"\x01\xff", bytes(8)),
        "a DATETIME of 255 digits": written(18, b"\xff", bytes(8)),
        "a BIT of 2,047": written(16, b"\x07\xff", b"\xff" * 4),
        "a blob with 200 bytes of length": written(252, b"\xc8", b"\xff" * 8),
        "rows of 2^63 columns": stream((19, table_map(3, b"")), row(b"", columns=HUGE + b"\xff")),
        "rows of no column": stream((19, table_map(3, b"")), row(b"x" * 50, columns=b"\0")),
        "a table of 2^63 columns": stream((19, table_map(3, b"", columns=HUGE))),
        "a table of 16 million columns": stream((19, table_map(3, b"", columns=b"\xfd\xff\xff\xff") + bytes(1000))),
        "metadata of 2^63 bytes": stream((19, table_map(3, b"", rest=b"\x04" + HUGE + b"\x02id"))),
        "names of 2^63 bytes": stream((19, table_map(3, b"", rest=b"\x04\x0c\x02id" + HUGE))),
        "changes of JSON that end early": stream(
            (19, table_map(245, b"\x04")),
            (39, row(b"")[1][:-5] + b"\xff\xfc" + struct.pack("<i", 1) + blob(b"\x0c\x01x") + b"\x01\x01\xfc" + HUGE),
        ),
        "a compressed column of 4 GiB": written(
            140, b"\x04", blob(b"\x84\xff\xff\xff\xff" + zlib.compress(bytes(MIB)))
        ),
    }.items(),
    ids=lambda item: item[0],
)
def test_values_and_tables_that_lie_stop(data: tuple[str, bytes]) -> None:
    assert outcome(data[1]) != "ok"


# -- what stands around them -----------------------------------------------------------------------------------------


def payload(inner: bytes, *, said: int | None = None, packed: bytes | None = None, kind: int = 0) -> tuple[int, bytes]:
    """A compressed transaction."""
    packed = zstandard.ZstdCompressor().compress(inner) if packed is None else packed
    fields = ((2, kind), (3, len(inner) if said is None else said), (1, len(packed)))
    return 40, b"".join(bytes([k, 9]) + b"\xfe" + struct.pack("<Q", v) for k, v in fields) + b"\0" + packed


def inner_event(kind: int, body: bytes, said: int | None = None) -> bytes:
    return struct.pack("<IBIIIH", 0, kind, 1, 19 + len(body) if said is None else said, 0, 0) + body


def alone(*events: tuple[int, bytes], gtid: bool = True) -> bytes:
    log = Binlog().begin_file()
    if gtid:
        log.gtid(1, 1_700_000_000_000_000)
    for kind, body in events:
        log.event(kind, body)
    return bytes(log.packets)


def statement(text: bytes, *, variables: int = 0) -> tuple[int, bytes]:
    return 2, struct.pack("<IIBHH", 1, 0, 4, 0, variables) + b"shop\0" + text


@pytest.mark.parametrize(
    "data",
    {
        "a payload that says 2^63": alone(payload(bytes(100), said=1 << 63)),
        "a payload of another compression": alone(payload(bytes(100), kind=9)),
        "a payload of noise": alone(payload(b"", said=10, packed=b"\x28\xb5\x2f\xfd" + b"\xee" * 500)),
        "a payload cut short": alone(payload(b"", said=MIB, packed=zstandard.compress(bytes(MIB))[:20])),
        "a payload within a payload": alone(payload(inner_event(*payload(inner_event(16, bytes(8)))))),
        "an inner event of 4 GiB": alone(payload(inner_event(30, bytes(100), 0xFFFFFFFF))),
        "an inner event of no bytes": alone(payload(inner_event(30, bytes(100), 0))),
        "a compressed statement of 4 GiB": alone(
            (165, statement(b"")[1] + b"\x84\xff\xff\xff\xff" + zlib.compress(bytes(40 * MIB), 9))
        ),
        "compressed rows of 4 GiB": stream(
            (19, table_map(3, b"")), (169, row(b"")[1][:12] + b"\x84\xff\xff\xff\xff" + zlib.compress(bytes(MIB)))
        ),
        "a statement whose variables go on": alone(statement(b"DROP TABLE t", variables=0xFFFF)),
        "a GTID cut short": alone((33, RAW_SID[:7]), gtid=False),
        "a tagged GTID that is longer": alone((42, b"\x02\xff" + struct.pack("<Q", 1 << 63)), gtid=False),
        "earlier GTIDs without end": alone((35, struct.pack("<Q", 1 << 62) + RAW_SID + struct.pack("<Q", 1 << 62))),
        "an XA name of 2 GiB": stream((38, b"\0" + struct.pack("<iii", 1, (1 << 31) - 1, 1) + b"name")),
    }.items(),
    ids=lambda item: item[0],
)
def test_groups_and_payloads_that_lie_stop(data: tuple[str, bytes]) -> None:
    assert outcome(data[1]) != "ok"


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b"ALTER TABLE t ADD COLUMN c INT DEFAULT " + b"(" * n,
        lambda n: b"ALTER TABLE t ADD COLUMN c INT DEFAULT " + b"(" * n + b")" * n,
        lambda n: b"CREATE TABLE t (a INT CHECK (" + b"(a) + " * n,
        lambda n: b"/*" * n,
        lambda n: b"'" + b"\\'" * n,
        lambda n: b"CREATE TABLE t (" + b"`" * n,
        lambda n: b"CREATE TABLE t (" + b"a INT," * n + b"b INT)",
        lambda n: b"SET STATEMENT " + b"a=1," * n + b" FOR DROP TABLE t",
        lambda n: b"\xff" * n,
    ],
)
def test_statements_of_any_shape_stay_within_the_bounds(make: Callable[[int], bytes]) -> None:
    """Most are no SQL of any server, and so of no table: that is no error, unless they might be of one."""
    outcome(alone(statement(make(5_000))))
