"""Rows counted by table: what a batch brings, how many tables are counted, and how the names come out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.destination.facts import OTHERS, TableTotals
from headrace.destination.status import DestinationStatus
from headrace.formats.canal.format import CanalFormat
from headrace.http import metrics as metrics_module
from headrace.http.facts import Facts
from headrace.http.server import HttpServer
from headrace.model import Column, Operation, Position, Row, RowsChange, SnapshotRows, TableRows, TableSchema
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.native_output import NativeUse
from headrace.pipeline.projection import Projections
from tests.handles import handles_of
from tests.streams import settings

END = Position("u", "bin.000001", 900)
COLUMNS = (Column("id", "int", 4), Column("name", "varchar(9)", 12))
LABELS = ("destination", "database", "table", "operation")
HOSTILE = ('say "hi"', "two\nlines", "back\\slash", 'brace"} 1', "表", OTHERS, "tab\tand\rreturn")


def builder(*, rows_per_message: int = 0, **rules: Any) -> MessageBuilder:
    fmt = CanalFormat()
    made = settings(**{"route": {"topic": "shop"}, **rules})
    return MessageBuilder(fmt, Projections(made, fmt), rows_per_message=rows_per_message, server_uuid="uuid")


def schema(table: str) -> TableSchema:
    return TableSchema("shop", table, COLUMNS, (0,))


def change(
    of: TableSchema, operation: Operation, *rows: Row, before: list[Row] | None = None, snapshot: bool = False
) -> RowsChange:
    read = SnapshotRows("snapshot-1-1", "initial", "true") if snapshot else None
    return RowsChange(of, operation, list(rows), before, 100, 5_000_000, "g:1", snapshot=read)


def counted(made: MessageBuilder) -> dict[str, tuple[int, int, int, int]]:
    batches = made.take(END, 0)
    assert not any(batch.tables for batch in batches[:-1])
    totals = TableTotals()
    for rows in batches[-1].tables:
        totals.add(rows)
    found = totals.all()
    assert sum(one.total for one in found) == sum(batch.rows for batch in batches)
    return {one.table: (one.inserted, one.updated, one.deleted, one.snapshot) for one in found}


@pytest.mark.parametrize("rows_per_message", [0, 1])
def test_rows_whose_message_can_not_be_made_are_not_counted(rows_per_message: int) -> None:
    made = builder(rows_per_message=rows_per_message)
    t = TableSchema("shop", "t", (COLUMNS[0], Column("x", "double", 8)), (0,))
    made.emit(change(t, Operation.INSERT, (1, 0.5)))
    with pytest.raises(ValueError, match="no number"):
        made.emit(change(t, Operation.INSERT, (2, float("nan")), (3, 1.5)))
    assert counted(made) == {"t": (1, 0, 0, 0)}


@pytest.mark.parametrize("rows_per_message", [0, 1])
def test_the_rows_of_each_table_are_counted_by_what_was_done_to_them(rows_per_message: int) -> None:
    made, t, u = builder(rows_per_message=rows_per_message), schema("t"), schema("u")
    made.emit(change(t, Operation.INSERT, (1, "a"), (2, "b"), (3, "c")))
    made.emit(change(t, Operation.INSERT, (4, "d")))
    made.emit(change(u, Operation.UPDATE, (1, "b"), before=[(1, "a")]))
    made.emit(change(t, Operation.DELETE, (1, "a"), (2, "b")))
    made.emit(change(u, Operation.INSERT, (7, "x"), (8, "y"), snapshot=True))
    assert counted(made) == {"t": (4, 0, 2, 0), "u": (0, 1, 0, 2)}
    assert counted(made) == {}, "what was taken is not counted again"


def test_rows_that_go_to_several_partitions_are_counted_once_each() -> None:
    made = builder(rows_per_message=1, route={"topic": "shop", "partitions": 4, "partition_hash": ".*:$pk$"})
    made.emit(change(schema("t"), Operation.INSERT, *((number, "a") for number in range(20))))
    made.emit(change(schema("t"), Operation.UPDATE, (1, "b"), (2, "b"), before=[(1, "a"), (2, "a")]))
    assert counted(made) == {"t": (20, 2, 0, 0)}


def test_rows_are_counted_as_they_are_published() -> None:
    made = builder(filter={"where": [{"tables": "shop\\.t", "rows": "id > 10"}]})
    t = schema("t")
    made.emit(change(t, Operation.INSERT, (1, "a"), (11, "b"), (12, "c")))
    made.emit(change(t, Operation.UPDATE, (2, "x"), (21, "y"), before=[(22, "x"), (3, "y")]))
    assert counted(made) == {"t": (3, 0, 1, 0)}, "what leaves the filter's condition is a DELETE, what enters an INSERT"


def test_what_a_run_has_read_and_nobody_has_taken_is_not_counted_later() -> None:
    made, t = builder(), schema("t")
    made.emit(change(t, Operation.INSERT, (1, "a")))
    made.clear()
    made.emit(change(t, Operation.INSERT, (2, "a")))
    assert counted(made) == {"t": (1, 0, 0, 0)}


def test_a_table_is_one_whatever_its_columns_were() -> None:
    made = builder()
    made.emit(change(schema("t"), Operation.INSERT, (1, "a")))
    made.emit(change(TableSchema("shop", "t", COLUMNS[:1], (0,)), Operation.INSERT, (2,)))
    assert counted(made) == {"t": (2, 0, 0, 0)}


def test_tables_beyond_the_limit_are_counted_together() -> None:
    totals = TableTotals(limit=3)
    for _ in range(2):
        for number in range(10_000):
            totals.add(TableRows("hostile", f"t{number}", inserted=2, deleted=1, commit_time_us=number + 1))
    found = {(one.schema, one.table): (one.inserted, one.deleted) for one in totals.all()}
    assert found == {("hostile", f"t{n}"): (4, 2) for n in range(3)} | {("", OTHERS): (39_988, 19_994)}
    assert TableTotals().all() == []


def test_with_a_limit_of_none_all_are_counted_together() -> None:
    totals = TableTotals(limit=0)
    totals.add(TableRows("shop", "t", updated=3))
    assert [(one.schema, one.table, one.updated) for one in totals.all()] == [("", OTHERS, 3)]


@pytest.fixture
def status() -> DestinationStatus:
    return DestinationStatus("shop", tables=TableTotals(limit=len(HOSTILE)))


@pytest.fixture
async def url(status: DestinationStatus) -> AsyncIterator[str]:
    server = HttpServer(("127.0.0.1", 0), Facts(handles_of({"shop": status}), "relay-1"))
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.close()


async def test_each_table_says_whether_native_code_makes_its_rows(
    url: str, status: DestinationStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "SHARED", 0.0)

    async def metrics() -> dict[tuple[str, str], float]:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
        (family,) = [one for one in families if one.name == "headrace_table_native"]
        return {(one.labels["database"], one.labels["table"]): one.value for one in family.samples}

    assert await metrics() == {}
    for table in ("quick", "gbk", "beyond"):
        status.published.tables.add(TableRows("shop", table, inserted=1, commit_time_us=1))
    status.native.note("shop", "quick", "")
    status.native.note("shop", "gbk", "it does not know the type of column t")
    assert await metrics() == {("shop", "quick"): 1, ("shop", "gbk"): 0}
    status.native = NativeUse("native code is not installed")
    assert await metrics() == {("shop", "quick"): 0, ("shop", "gbk"): 0, ("shop", "beyond"): 0}


async def test_hostile_names_come_out_of_metrics_and_api_as_they_are(url: str, status: DestinationStatus) -> None:
    for number, table in enumerate((*HOSTILE, "one more", "and another"), 1):
        status.published.tables.add(TableRows("db\n1", table, inserted=number, commit_time_us=number * 1_000_000))
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/metrics") as answer:
            text = await answer.text()
        async with session.get(f"{url}/api/v1/destinations/shop/tables") as answer:
            page = await answer.json()
        async with session.get(f"{url}/api/v1/destinations/nosuch/tables") as answer:
            assert answer.status == 404
    samples = [
        ((sample.name, *(sample.labels.get(label) for label in LABELS)), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "_table_" in sample.name
    ]
    assert len(samples) == len(dict(samples)) == (4 + 1) * (len(HOSTILE) + 1)
    found = dict(samples)
    wanted = {("db\n1", table): number for number, table in enumerate(HOSTILE, 1)} | {("", OTHERS): 17}
    for name, number in wanted.items():
        assert found["headrace_table_rows_total", "shop", *name, "insert"] == number
        assert found["headrace_table_rows_total", "shop", *name, "update"] == 0
    assert found["headrace_table_last_change_timestamp_seconds", "shop", "db\n1", "表", None] == 5
    assert (page["destination"], page["limit"]) == ("shop", len(HOSTILE))
    assert {(one["database"], one["table"]): one["inserted"] for one in page["tables"]} == wanted
    assert [one["inserted"] for one in page["tables"]] == sorted(wanted.values(), reverse=True)
    assert page["tables"][0] == {
        "database": "",
        "table": OTHERS,
        "inserted": 17,
        "updated": 0,
        "deleted": 0,
        "snapshot": 0,
        "last_at": "1970-01-01T00:00:09.000000Z",
    }
