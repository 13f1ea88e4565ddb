"""The comparison of a table with its messages: every difference is found, none is invented, and lag is none."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headrace.cli.verify import command
from headrace.cli.wiring import ADAPTERS, Wiring, new_format
from headrace.errors import ConfigError
from headrace.model import ABSENT, Column, Operation, Position, Row, RowsChange, TableSchema
from headrace.pipeline.message_builder import make_builder
from headrace.pipeline.projection import Projections
from headrace.ports.replay import Published, Replay
from headrace.ports.tables import Chunk, ChunkRequest, Key, Lacks, TableList, TableReader, Watermark
from headrace.settings.destination import DestinationSettings
from headrace.verify.comparison import Limits, compare
from headrace.verify.hashes import row_hash
from headrace.verify.image import Image, TooManyRows
from headrace.verify.result import TableFound
from headrace.verify.table import Conditions, TableNow
from headrace.verify.views import TopicView
from tests.configured import load
from tests.streams import settings

NAME = Column("name", "varchar(20)", 12, charset="utf8mb4")
TABLE = TableSchema("shop", "t", (Column("id", "int", 4, nullable=False), NAME), (0,))
KEYLESS = TableSchema("shop", "t", TABLE.columns, ())
FORMATS = ("canal", "debezium")
START = 1 << 40


class Rows(Chunk):
    """Some rows of a table in memory."""

    def __init__(self, rows: Sequence[Row], last: bool) -> None:
        self._rows, self._taken = rows, 0
        self.rows, self.size, self.last = len(rows), len(rows), last
        self.high, self.continues, self.seconds, self.order = Watermark(), False, 0.0, ""
        self.end = _key(rows[-1]) if rows else None

    def take(self, count: int) -> list[Row]:
        some = list(self._rows[self._taken : self._taken + count])
        self._taken += len(some)
        self.rows -= len(some)
        return some

    @property
    def key(self) -> Key | None:
        return _key(self._rows[self._taken - 1])

    def key_at(self, number: int) -> Key | None:
        raise NotImplementedError


def _key(row: Row) -> Key:
    return (str(row[0]),)


class Table(TableReader):
    """A table in memory. `behind_read` is called once it was read as a whole, as a change beside the reading."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.now = {row[0]: row for row in rows}
        self.all = [*rows]
        self.behind_read: Callable[[], None] = lambda: None

    def put(self, *rows: Row) -> None:
        self.now |= {row[0]: row for row in rows}

    async def tables(self) -> TableList:
        return TableList([], Watermark(), 0)

    async def why_unlisted(self, schema: str, table: str) -> tuple[str, str]:
        return f"there is no {schema}.{table}", ""

    async def lacks(self) -> Lacks:
        return lambda *_: ""

    async def read(self, request: ChunkRequest) -> Chunk:
        if not request.table.keys:
            return Rows(self.all, True)
        rows = sorted(self.now.values())
        if request.where:
            rows = [row for row in rows if str(row[0]) in request.where.split()]
        behind = [row for row in rows if request.after is None or row[0] > int(request.after[0])]
        chunk = Rows(behind[:3], len(behind) <= 3)
        if chunk.last and not request.where:
            self.behind_read()
        return chunk

    async def require(self) -> None:
        pass

    async def load(self) -> tuple[float, int]:
        return 0.0, 0

    async def close(self) -> None:
        pass


class Log(Replay):
    """Messages in memory; `later` come one block with each further read."""

    def __init__(self, *messages: Published) -> None:
        self.blocks = [[*messages]]
        self.later: list[list[Published]] = []

    async def read(self) -> AsyncIterator[Sequence[Published]]:
        blocks, self.blocks = self.blocks, [self.later.pop(0)] if self.later else []
        for block in blocks:
            yield block

    def notes(self) -> list[str]:
        return []

    async def close(self) -> None:
        pass


def messages(
    fmt: str, operation: Operation, rows: Sequence[Row], pos: int, before: Any = None, at: int = 5, **more: Any
) -> list[Published]:
    """What a Kafka sink would be given for a change."""
    builder = make_builder(config(fmt), new_format(config(fmt)), "server", 1)
    table = more.pop("table", TABLE)
    builder.emit(RowsChange(table, operation, [*rows], before, START + pos, at * 1_000_000, "", **more))
    (batch,) = builder.take(Position("", "", 0), 0.0)
    keys = batch.keys or [None] * len(batch.values)
    headers = [dict(one) for one in batch.headers]
    return [
        Published(value, key, int(one["headrace-pos"]), one.get("headrace-image") == b"partial")
        for value, key, one in zip(batch.values, keys, headers, strict=True)
    ]


def config(fmt: str, **more: Any) -> DestinationSettings:
    return settings(message={"format": fmt}, route={"topic": "shop"}, **more)


def parts(fmt: str, table: TableReader, log: Replay, schema: TableSchema = TABLE) -> tuple[TableNow, TopicView]:
    made = config(fmt)
    reader = ADAPTERS.format_adapter(fmt).reader("shop", "t", ["id"] if schema.keys else [])
    among = Conditions(
        lambda _, keys: " ".join(key[0] for key in keys), lambda _, first, last: f"id BETWEEN {first[0]} AND {last[0]}"
    )
    now = TableNow(
        table,
        schema,
        Projections(made).of(schema),
        new_format(made),
        reader,
        among,
        lambda row: (row_hash(row),),
    )
    return now, TopicView(log, reader)


async def compared(
    fmt: str, table: TableReader, log: Replay, schema: TableSchema = TABLE, read_ms: int = 0, **limits: Any
) -> TableFound:
    async def now_ms() -> int:
        return read_ms

    now, view = parts(fmt, table, log, schema)
    wanted = Limits(**{"settle": 0.02, "range_rows": 4, **limits})
    return await compare("shop", now, view, wanted, now_ms, lambda *_: None)


ROWS = st.dictionaries(st.integers(1, 30), st.sampled_from(["a", "b", None]), max_size=20)


@hypothesis_settings(max_examples=60, deadline=None)
@given(source=ROWS, consumer=ROWS, fmt=st.sampled_from(FORMATS), together=st.integers(1, 5))
def test_exactly_the_rows_that_differ_are_found(
    source: dict[int, Any], consumer: dict[int, Any], fmt: str, together: int
) -> None:
    rows = [*consumer.items()]
    log = [
        message
        for i in range(0, len(rows), together)
        for message in messages(fmt, Operation.INSERT, rows[i : i + together], i)
    ]
    found = asyncio.run(compared(fmt, Table([*source.items()]), Log(*log), settle=0.001))
    assert found.source_rows == len(source)
    assert found.consumer_rows == len(consumer)
    assert found.missing == len(source.keys() - consumer.keys())
    assert found.different == sum(source[key] != consumer[key] for key in source.keys() & consumer.keys())
    assert found.extra_keys == sorted(str(key) for key in consumer.keys() - source.keys())
    assert found.equal is (source == consumer)
    wrong = {key for key in source if key not in consumer or consumer[key] != source[key]}
    covered = [one.where.removeprefix("id BETWEEN ").split(" AND ") for one in found.ranges]
    assert all(any(int(low) <= key <= int(high) for low, high in covered) for key in wrong)
    ends = {int(end) for span in covered for end in span}
    assert ends <= wrong, "a range is no wider than what differs in it"


@pytest.mark.parametrize("fmt", FORMATS)
async def test_updates_deletes_and_changed_keys_leave_the_rows_that_the_table_has(fmt: str) -> None:
    log = [
        *messages(fmt, Operation.INSERT, [(1, "a"), (2, "b"), (3, "c"), (4, "d")], 0),
        *messages(fmt, Operation.UPDATE, [(1, "x"), (20, "b")], 10, before=[(1, "a"), (2, "b")]),
        *messages(fmt, Operation.DELETE, [(3, "c")], 20),
        *messages(fmt, Operation.INSERT, [(7, "other")], 30, table=TableSchema("shop", "u", TABLE.columns, (0,))),
    ]
    found = await compared(fmt, Table([(1, "x"), (20, "b"), (4, "d")]), Log(*log))
    assert found.equal, found


@pytest.mark.parametrize("fmt", FORMATS)
async def test_of_several_partitions_the_highest_version_of_a_row_counts(fmt: str) -> None:
    log = [
        *messages(fmt, Operation.DELETE, [(1, "a")], 50),
        *messages(fmt, Operation.INSERT, [(2, "new")], 60),
        *messages(fmt, Operation.INSERT, [(1, "a"), (2, "old")], 0),
    ]
    found = await compared(fmt, Table([(2, "new")]), Log(*log))
    assert found.equal, found


@pytest.mark.parametrize("fmt", FORMATS)
async def test_what_the_topic_brings_a_little_later_is_no_difference(fmt: str) -> None:
    log = Log(*messages(fmt, Operation.INSERT, [(1, "a"), (2, "b"), (3, "c")], 0))
    quiet: list[Published] = []
    log.later = [
        quiet,
        messages(fmt, Operation.UPDATE, [(1, "x")], 10, before=[(1, "a")]),
        messages(fmt, Operation.DELETE, [(2, "b")], 20),
        messages(fmt, Operation.INSERT, [(4, "d")], 30),
    ]
    found = await compared(fmt, Table([(1, "x"), (3, "c"), (4, "d")]), log, settle=0.5)
    assert found.rechecked == 3
    assert found.equal, found


async def test_a_row_that_changes_all_the_time_agrees_once_the_topic_passes_through_what_was_read() -> None:
    log = Log(*messages("canal", Operation.INSERT, [(1, "0")], 0))
    log.later = [messages("canal", Operation.UPDATE, [(1, str(n))], n, before=[(1, "?")]) for n in range(1, 8)]
    found = await compared("canal", Table([(1, "5")]), log, settle=0.05)
    assert found.equal, found


@pytest.mark.parametrize("fmt", FORMATS)
async def test_verify_waits_longer_for_a_lagging_topic_than_for_an_idle_one(fmt: str) -> None:
    other = TableSchema("shop", "u", TABLE.columns, (0,))
    log = Log()
    log.later = [messages(fmt, Operation.INSERT, [(n, "x")], n, table=other) for n in range(1, 10)]
    log.later.append(messages(fmt, Operation.INSERT, [(1, "a")], 200))
    found = await compared(fmt, Table([(1, "a")]), log, settle=0.01, read_ms=6_000)
    assert found.equal, found


async def test_a_row_deleted_and_inserted_again_during_the_read_is_no_extra_row() -> None:
    log, table = Log(*messages("canal", Operation.INSERT, [(1, "a")], 0)), Table([])
    table.behind_read = lambda: table.put((1, "again"))
    log.later = [[], messages("canal", Operation.UPDATE, [(1, "again")], 10, before=[(1, "a")])]
    found = await compared("canal", table, log)
    assert found.equal, found
    assert (found.source_rows, found.consumer_rows) == (0, 1)
    assert found.notes == ["the two counts are of two moments: rows came or went in between"]
    still = await compared("canal", Table([(1, "a")]), Log(*messages("canal", Operation.INSERT, [(1, "a")], 0)))
    assert still.notes == []


async def test_a_row_of_which_the_last_change_lacks_columns_is_called_not_comparable() -> None:
    partial = messages("canal", Operation.UPDATE, [(1, ABSENT)], 10, before=[(1, ABSENT)], partial=True)
    log = Log(*messages("canal", Operation.INSERT, [(1, "a")], 0), *partial)
    found = await compared("canal", Table([(1, "a")]), log)
    assert (found.incomplete, found.different, found.equal) == (1, 0, False)


@pytest.mark.parametrize("fmt", FORMATS)
async def test_without_a_key_number_and_checksum_of_the_rows_decide(fmt: str) -> None:
    log = [
        *messages(fmt, Operation.INSERT, [(1, "a"), (1, "a"), (2, "b"), (3, "c")], 0, table=KEYLESS),
        *messages(fmt, Operation.UPDATE, [(2, "x")], 10, before=[(2, "b")], table=KEYLESS),
        *messages(fmt, Operation.DELETE, [(3, "c")], 20, table=KEYLESS),
    ]
    rows = [(2, "x"), (1, "a"), (1, "a")]
    assert (await compared(fmt, Table(rows), Log(*log), KEYLESS)).equal
    assert not (await compared(fmt, Table(rows[:2]), Log(*log), KEYLESS)).equal
    assert not (await compared(fmt, Table([*rows[:2], (1, "b")]), Log(*log), KEYLESS)).equal


async def test_more_rows_than_fit_are_refused_in_words() -> None:
    log = Log(*messages("canal", Operation.INSERT, [(n, "x") for n in range(5)], 0))
    with pytest.raises(TooManyRows, match=r"more than 4 rows.*--max-rows"):
        await compared("canal", Table([]), log, max_rows=4)


def test_a_deleted_row_is_remembered_and_counts_as_none() -> None:
    image = Image(10)
    image.put(b"1", 7, 5)
    image.put(b"1", 0, 6)
    image.put(b"1", 7, 5)
    assert (len(image), image.count(), [*image.drain()]) == (1, 0, [])


def test_a_tombstone_says_by_its_keys_schema_of_which_table_it_is() -> None:
    reader = ADAPTERS.format_adapter("debezium").reader("shop", "t", ["id"])
    other = ADAPTERS.format_adapter("debezium").reader("shop", "u", ["id"])
    delete, tombstone = messages("debezium", Operation.DELETE, [(3, "c")], 0)
    assert [(one.key, one.row) for one in reader.read(delete)] == [(b"3", None)]
    assert [(one.key, one.row) for one in reader.read(tombstone)] == [(b"3", None)]
    assert not other.read(tombstone)


async def test_a_destination_that_leaves_out_operations_is_not_compared() -> None:
    chosen = settings(filter={"operations": ["insert", "update"]})
    given = argparse.Namespace(name="shop", index=None)
    known: Any = SimpleNamespace(destinations={"shop": chosen})
    with pytest.raises(ConfigError, match=r"shop: what is published is not the table: .* lacks delete"):
        await command(known, given)


@pytest.mark.parametrize("message", [{"format": "maxwell"}, {"format": "debezium", "debezium": {"unwrap": True}}])
def test_messages_that_say_too_little_are_not_read_back(message: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").touch()
    (tmp_path / "destinations").mkdir()
    least = '[source]\nhost = "h"\nuser = "u"\npassword = ""\n[sink]\ntype = "jsonl"\npath = "-"\n'
    (tmp_path / "destinations" / "shop.toml").write_text(least)
    wiring = Wiring(load(tmp_path / "headrace.toml", {}))
    schema = TableSchema("shop", "t", (Column("id", "int", 4),), (0,))
    with pytest.raises(LookupError, match="can't be read back"):
        wiring.message_reader(settings(message=message), schema)
