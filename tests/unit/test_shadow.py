"""The comparison behind `headrace shadow`: pairs, differences and the rules that explain them."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NotUnderstood
from headrace.moving.shadow import canal_rules, comparison, debezium_rules
from headrace.moving.shadow.canal_rules import CanalRules
from headrace.moving.shadow.changes import Change, Reader, TopicReader, debezium_changes
from headrace.moving.shadow.comparison import MISSING, SURPLUS, Comparison, TooFarApart
from headrace.moving.shadow.stretch import Stretch
from headrace.ports.replay import Published, Replay
from tests.unit import test_canal_recorded, test_debezium_recorded

DOCS = Path(__file__).parents[2] / "docs"
END = 1 << 60


def row(id_: int, name: str, *, at: int = 5_000, kind: str = "INSERT", **more: Any) -> dict[str, Any]:
    """A flat message of one row."""
    message: dict[str, Any] = {"database": "shop", "table": "t", "type": kind, "isDdl": False, "gtid": "", "sql": ""}
    message |= {"es": at, "pkNames": ["id"], "mysqlType": {"id": "int", "name": "varchar(9)"}, "old": None}
    return {**message, "sqlType": {"id": 4, "name": 12}, "data": [{"id": str(id_), "name": name}], **more}


def compared(
    old: Iterable[Any],
    new: Iterable[Any],
    *,
    end_ms: int = END,
    rules: CanalRules | None = None,
    versions: Iterable[int] | None = None,
) -> Comparison:
    """Flat messages of both sides, compared."""
    of = rules or CanalRules()
    made, keys_of = Comparison(of.explain, of.alone), {"shop.t": ["id"]}
    numbers = iter(versions or range(1, 1 << 20))
    for message in new:
        for change in of.read(Published(json.dumps(message).encode(), version=next(numbers)), keys_of, ours=True):
            made.add_new(change)
    for message in old:
        for change in of.read(Published(json.dumps(message).encode(), stored_ms=6_000), keys_of, ours=False):
            made.add_old(change)
    made.finish(end_ms)
    return made


def whats(found: Comparison) -> list[tuple[str | None, str, int]]:
    return [(one.rule, one.what, one.count) for one in found.findings]


# -- pairs ------------------------------------------------------------------------------------------------------------


def test_equal_messages_have_no_differences() -> None:
    messages = [row(1, "a"), row(2, "b"), row(1, "c", kind="UPDATE")]
    found = compared(messages, messages)
    assert (found.counts["pairs"], found.counts["equal"], found.findings) == (3, 3, [])


def test_rows_are_compared_one_by_one_however_messages_are_split() -> None:
    both = row(1, "a") | {"data": [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}]}
    found = compared([both], [row(1, "a"), row(2, "b")])
    assert (found.counts["pairs"], found.findings) == (2, [])


def test_a_row_that_headrace_lacks_is_unexplained_and_those_after_it_are_compared() -> None:
    old = [row(1, "a"), row(1, "b", kind="UPDATE"), row(1, "c", kind="UPDATE"), row(1, "d", kind="DELETE")]
    found = compared(old, [old[0], *old[2:]])
    assert whats(found) == [(None, MISSING, 1)]
    assert '"data.name":"b"' in found.findings[0].example
    assert found.counts["pairs"] == 3


def test_a_row_that_the_old_system_lacks_is_unexplained() -> None:
    new = [row(1, "a"), row(1, "b", kind="UPDATE"), row(2, "c")]
    assert whats(compared([new[0], new[2]], new)) == [(None, SURPLUS, 1)]


def test_another_order_of_one_row_s_changes_is_unexplained() -> None:
    new = [row(1, "a"), row(1, "b", kind="UPDATE"), row(1, "c", kind="UPDATE")]
    found = compared([new[0], new[2], new[1]], new)
    assert found.unexplained > 0


def test_another_value_is_unexplained_with_both_values_in_the_example() -> None:
    found = compared([row(1, "a"), row(2, "old")], [row(1, "a"), row(2, "new")])
    assert whats(found) == [(None, "data.name", 1)]
    assert found.findings[0].example == '["2"]: old by the old system, new by headrace'


def test_what_the_old_system_published_before_headrace_began_is_left_out() -> None:
    old = [row(1, "before", at=4_000), row(2, "same second", at=5_000), row(1, "a", at=5_000), row(3, "c", at=9_000)]
    found = compared(old, [row(1, "a", at=5_400, kind="INSERT"), row(3, "c", at=9_000)])
    assert found.counts["before"] == 2
    assert whats(found) == [(canal_rules.ES, "es", 1)]


def test_what_was_committed_at_the_end_may_come_later() -> None:
    messages = [row(1, "a"), row(2, "b", at=9_000)]
    assert compared(messages, messages[:1], end_ms=9_000).counts["after"] == 1
    assert compared(messages[:1], messages, end_ms=9_000).counts["after"] == 1
    assert compared(messages, messages[:1], end_ms=9_001).unexplained == 1


def test_what_either_system_sends_again_is_counted_and_no_difference() -> None:
    begin, first, second = row(2, "a", at=1_000), row(1, "a"), row(1, "b", kind="UPDATE")
    found = compared([begin, first, second, first, second], [begin, first, second])
    assert (found.findings, found.counts["again"]) == ([], 2)
    found = compared([begin, first, second], [begin, first, second, first, second], versions=[6, 7, 8, 7, 8])
    assert (found.findings, found.counts["again"]) == ([], 2)


def test_what_a_row_had_before_is_no_change_that_was_sent_again_when_the_row_goes_on() -> None:
    of = [row(1, name, kind="UPDATE") for name in "abac"]
    old = [row(2, "a", at=1_000), *of]
    assert whats(compared(old, [*old[:3], old[4]])) == [(None, MISSING, 1)]
    assert whats(compared(old[:4], old[:3])) == [(None, MISSING, 1)]


@pytest.mark.parametrize("table", ["t", "without_a_key"])
def test_contents_that_come_again_and_again_are_left_out_only_before_headrace_began(table: str) -> None:
    old = [row(1, "ab"[n % 2], at=1_000 * n, kind="UPDATE", table=table) for n in range(80)]
    found = compared(old, old[30:])
    assert (found.findings, found.counts["before"], found.counts["equal"]) == ([], 30, 50)
    assert compared(old, [*old[30:50], *old[52:]]).unexplained > 0


def test_a_row_from_before_that_changes_again_at_the_end_is_no_difference() -> None:
    begin, before, after = row(2, "a", at=5_000), row(1, "a", at=4_000), row(1, "b", at=9_000)
    found = compared([before, begin], [begin, after], end_ms=9_000)
    assert (found.findings, found.counts["before"], found.counts["after"]) == ([], 1, 1)


@pytest.mark.parametrize(
    ("type_", "theirs", "ours"),
    [("binary(4)", "\xe9\x01", "6QEAAA=="), ("enum('a','b')", "2", "b"), ("decimal(5,2)", "7.0", "7.00")],
)
def test_rows_are_known_by_keys_that_both_systems_write_in_their_own_ways(type_: str, theirs: str, ours: str) -> None:
    old, new = (row(1, "a", mysqlType={"id": type_}, data=[{"id": id_, "name": "a"}]) for id_ in (theirs, ours))
    found = compared([old], [new])
    assert (found.unexplained, found.counts["pairs"]) == (0, 1)


def debezium_compared(old: Iterable[Published], new: Iterable[Published], *, end_ms: int = END) -> Comparison:
    made = Comparison(debezium_rules.explain, debezium_rules.alone)
    for add, messages in ((made.add_new, new), (made.add_old, old)):
        read = TopicReader(lambda message: debezium_changes(message, {}), "shop.t")
        for message in messages:
            for change in read(message):
                add(change)
    made.finish(end_ms)
    return made


def event(op: str, at: int, **more: Any) -> Published:
    source = {"db": "shop", "table": "t", "ts_ms": at, "pos": at}
    value = {"op": op, "before": None, "after": None, "source": source, **more}
    return Published(json.dumps(value).encode(), b'{"id":1}', version=at)


def deleted_twice() -> list[Published]:
    """A row that is inserted and deleted, and again, with tombstones."""
    row_, tombstone = {"id": 1}, Published(None, b'{"id":1}')
    once = [event("c", 5_000, after=row_), event("d", 6_000, before=row_), tombstone._replace(version=6_000)]
    return [*once, event("c", 7_000, after=row_), event("d", 8_000, before=row_), tombstone._replace(version=8_000)]


def test_tombstones_have_the_time_of_their_delete() -> None:
    events = deleted_twice()
    assert debezium_compared(events, events).findings == []
    assert whats(debezium_compared(events, events[:-1])) == [(None, MISSING, 1)]
    assert whats(debezium_compared(events, [one for one in events if one.value])) == [(None, MISSING, 2)]
    assert debezium_compared(events[:3], events, end_ms=7_000).counts["after"] == 3
    assert debezium_compared(events, events[:3], end_ms=7_000).counts["after"] == 3


@pytest.mark.parametrize(
    ("theirs", "ours", "rule"),
    [
        (1.100000023841858, 1.1, debezium_rules.FLOAT),
        (1.0000001, 1.0000002, None),
        ('{"a":[1,2]}', '{"a": [1, 2]}', debezium_rules.JSON),
        ("1.0", "1.00", None),
    ],
)
def test_a_value_of_debezium_is_explained_by_what_both_have(theirs: Any, ours: Any, rule: str | None) -> None:
    old, new = (event("c", 5_000, after={"id": 1, "x": value}) for value in (theirs, ours))
    assert whats(debezium_compared([old], [new])) == [(rule, "after.x", 1)]


def test_a_column_that_headrace_lacks_is_unexplained() -> None:
    old, new = (event("c", 5_000, after=after) for after in ({"id": 1, "x": 1}, {"id": 1}))
    assert whats(debezium_compared([old], [new])) == [(None, "after.x", 1)]
    update = row(1, "b", kind="UPDATE") | {"data": [{"id": str(n), "name": "b"} for n in (1, 2)]}
    old_values = update | {"old": [{"name": "a"}, {"name": "b"}]}
    found = compared([old_values], [update])
    assert sorted(whats(found), key=str) == [(canal_rules.OLD, "old.name", 1), (None, "old.name", 1)]


def test_a_changed_key_is_the_same_as_one_message_or_two() -> None:
    update = row(2, "a", kind="UPDATE") | {"old": [{"id": "1"}]}
    halves = [row(1, "a", kind="DELETE"), row(2, "a")]
    assert compared([row(1, "a"), update], [row(1, "a"), *halves]).findings == []


def test_one_system_that_is_far_ahead_is_an_error_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "PENDING", 10)
    with pytest.raises(TooFarApart):
        compared([], [row(i, "a") for i in range(11)])


class Kept(Replay):
    """A topic in memory, in blocks of five."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = [Published(json.dumps(one).encode(), version=n) for n, one in enumerate(messages)]

    async def read(self) -> AsyncIterator[Sequence[Published]]:
        while block := self._messages[:5]:
            del self._messages[:5]
            yield block

    def notes(self) -> list[str]:
        return []

    async def close(self) -> None:
        pass


async def followed(topics: dict[str, list[dict[str, Any]]]) -> Comparison:
    """What is found in topics by name; headrace's begin with "shadow."."""
    of = CanalRules()
    made = Comparison(of.explain, of.alone)

    def read(message: Published, ours: bool) -> Iterable[Change]:
        return of.read(message, {"shop.t": ["id"]}, ours)

    pairs = [(name, f"shadow.{name}") for name in topics if not name.startswith("shadow.")]
    stretch = Stretch(pairs, lambda topic, since_ms: Kept(topics[topic]), read, made)

    async def now_ms() -> int:
        return END

    await stretch.follow(now_ms, 0, 0)
    return made


async def test_topics_of_any_length_are_compared_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "PENDING", 15)
    messages = [row(n, "a", at=1_000 * n) for n in range(1, 100)]
    made = await followed({"t": messages, "shadow.t": messages})
    assert (made.counts["equal"], made.findings) == (99, [])


@pytest.mark.parametrize(
    ("sql", "rule"),
    [
        ("CREATE VIEW v AS SELECT 1", canal_rules.VIEWS),
        ("CREATE DEFINER=`root`@`%` PROCEDURE `p`() SELECT 1", canal_rules.ROUTINES),
        ("DROP TRIGGER t", canal_rules.ROUTINES),
        ("ALTER TABLE trigger_event ADD n INT", None),
    ],
)
def test_a_statement_that_canal_does_not_publish_is_explained(sql: str, rule: str | None) -> None:
    statement = row(1, "a", kind="QUERY", at=9_000, table="", data=None, sql=sql, isDdl=True)
    assert whats(compared([row(1, "a")], [row(1, "a"), statement])) == [(rule, SURPLUS, 1)]
    assert whats(compared([row(1, "a"), statement], [row(1, "a")])) == [(None, MISSING, 1)]


def test_a_statement_about_no_table_is_the_same_whatever_its_database() -> None:
    statement = row(1, "a", kind="QUERY", table="", data=None, sql="CREATE ROLE r", isDdl=True)
    found = compared([statement | {"database": ""}], [statement])
    assert whats(found) == [(canal_rules.DATABASE, "database", 1)]


async def test_a_row_in_another_topic_is_unexplained() -> None:
    made = await followed({"t": [row(1, "a")], "u": [], "shadow.t": [], "shadow.u": [row(1, "a")]})
    assert whats(made) == [(None, "topic", 1)]


def test_latencies_are_counted_from_the_more_exact_commit_time() -> None:
    found = compared([row(1, "a", at=5_000)], [row(1, "a", at=5_700)])
    assert found.latencies[0] == {}, "the messages of headrace have no time here"


@pytest.mark.parametrize("value", [b"no json", b"[1]", b'{"database":"shop"}'])
@pytest.mark.parametrize("reader", [CanalRules().read, debezium_changes])
def test_messages_of_another_kind_are_refused(reader: Reader, value: bytes) -> None:
    with pytest.raises(NotUnderstood):
        list(reader(Published(value), {}, False))


# -- rules ------------------------------------------------------------------------------------------------------------


def titles(page: str) -> set[str]:
    return set(re.findall(r"^- \*\*(.+?)\*\*$", (DOCS / page).read_text(), re.MULTILINE))


def test_each_rule_is_a_title_of_its_page() -> None:
    assert set(canal_rules.RULES) <= titles("canal-differences.md")
    assert set(debezium_rules.RULES) <= titles("debezium-format.md")


def test_what_canal_recorded_is_explained_by_the_page() -> None:
    recorded, made = test_canal_recorded.ours()
    found = compared(recorded, made, rules=CanalRules("latin1", enum_index=True))
    assert [one for one in found.findings if one.rule is None] == []
    assert found.counts["pairs"] > 30
    assert {canal_rules.TEXT, canal_rules.DECIMAL, canal_rules.BINARY_N} <= {one.rule for one in found.findings}


def as_recorded(part: dict[str, Any]) -> dict[str, Any]:
    """Without schemas, of which the recording has each once, and without what depends on the moment of recording."""
    payload: dict[str, Any] = part["payload"]
    if "source" in payload:
        kept = {name: of for name, of in payload["source"].items() if name not in ("version", "server_id", "thread")}
        payload = payload | {"source": kept}
    return payload


@pytest.mark.parametrize("name", test_debezium_recorded.SETTINGS)
def test_what_debezium_recorded_is_explained_by_the_page(name: str) -> None:
    begin, recorded = test_debezium_recorded.theirs(name)
    made, keys_of = Comparison(debezium_rules.explain, debezium_rules.alone), dict[str, list[str]]()
    sides: list[tuple[Callable[..., None], Any]] = [
        (made.add_new, test_debezium_recorded.ours(name, begin)),
        (made.add_old, recorded),
    ]
    for add, records in sides:
        for _, key, value, _ in records:
            parts = [None if part is None else json.dumps(as_recorded(part)).encode() for part in (value, key)]
            for change in debezium_changes(Published(parts[0], parts[1]), keys_of):
                change.table = change.table or "a tombstone"
                add(change)
    made.finish(END)
    assert [one for one in made.findings if one.rule is None] == []
    assert made.counts["pairs"] > 15


@pytest.mark.parametrize(
    ("type_", "theirs", "ours", "rule"),
    [
        ("enum('a','b''c')", "2", "b'c", canal_rules.ENUM),
        ("enum('a','b')", "1", "b", None),
        ("set('x','y','z')", "5", "x,z", canal_rules.ENUM),
        ("varbinary(9)", "\xe9\x00", "6QA=", canal_rules.BINARY),
        ("varbinary(9)", "\xe9", "6QA=", None),
        ("binary(2)", "\xe9", "6QA=", canal_rules.BINARY_N),
        ("double", "1.0E20", "1e20", canal_rules.FLOAT),
        ("double", "1.0E20", "1e21", None),
        ("decimal(9,2)", "0.0", "0.00", canal_rules.DECIMAL),
        ("decimal(9,2)", "-5.0", "-5.00", canal_rules.DECIMAL),
        ("decimal(9,2)", "0.1", "0.10", None),
        ("decimal(20,10)", "5.500000000", "5.5000000000", canal_rules.DECIMAL),
        ("decimal(20,10)", "5.5", "5.5000000000", None),
        ("double", "1.0000001", "1.0000002", None),
        ("time(3)", "00:00:01.500", "-00:00:01.500", canal_rules.TIME),
        ("time(3)", "10:00:01.500", "-00:00:01.500", None),
        ("timestamp", "2026-01-01 08:00:00", "2026-01-01 00:00:00", None),
        ("timestamp", "2026-01-01 08:00:01", "2026-01-01 00:00:00", None),
        ("datetime", "2026-01-01 08:00:00", "2026-01-01 00:00:00", None),
        ("varchar(9)", "\ufffd\ufffd\ufffd\ufffd", "广州", canal_rules.TEXT),
        ("varchar(9)", "深圳", "广州", None),
        ("varchar(9)", "abc", "abd", None),
        ("int", "1", "2", None),
    ],
)
def test_a_value_is_explained_by_its_type_alone(type_: str, theirs: str, ours: str, rule: str | None) -> None:
    types: Any = {"mysqlType": {"id": "int", "name": type_}}
    found = compared([row(1, theirs, **types)], [row(1, ours, **types)])
    assert whats(found) == [(rule, "data.name", 1)]


@pytest.mark.parametrize(
    ("field", "theirs", "ours", "rule"),
    [
        ("es", 5_000, 5_900, canal_rules.ES),
        ("es", 6_000, 5_900, None),
        ("gtid", "", "a:1", canal_rules.GTID),
        ("gtid", "a:1", "", None),
        ("pkNames", None, ["id"], canal_rules.KEYS),
        ("sqlType", {"id": 4, "name": 12}, {"id": -5, "name": 12}, None),
        ("mysqlType", {"id": "int", "name": "varchar(9)"}, {"id": "int", "name": "varchar(10)"}, canal_rules.TYPE_TEXT),
        ("mysqlType", {"id": "int", "name": "varchar(9)"}, {"id": "int", "name": "text"}, None),
    ],
)
def test_a_field_is_explained_where_the_page_says_so(field: str, theirs: Any, ours: Any, rule: str | None) -> None:
    found = compared([row(1, "a") | {field: theirs}], [row(1, "a") | {field: ours}])
    assert [(one.rule, one.what.partition(".")[0]) for one in found.findings] == [(rule, field)]


def test_the_text_of_a_change_that_canal_sends_on_mariadb_is_explained_and_a_missing_statement_is_not() -> None:
    text = row(1, "a", kind="QUERY", at=9_000, table="", database="", data=None, sql="INSERT INTO t VALUES (1)")
    statement = text | {"isDdl": True, "sql": "DROP TABLE u"}
    found = compared([row(1, "a"), text, statement], [row(1, "a")])
    assert whats(found) == [(None, MISSING, 1), (canal_rules.ANNOTATIONS, MISSING, 1)]


def test_the_name_of_the_source_s_schema_says_which_connector_it_was() -> None:
    old, new = ({"name": f"io.debezium.connector.{name}.Source", "type": "struct"} for name in ("mariadb", "mysql"))
    change = Change("t", "", "INSERT", {}, 1, 1)
    assert debezium_rules.explain("schema", [None, old], [None, new], change, change) == debezium_rules.CONNECTOR
    other = {**new, "type": "string"}
    assert debezium_rules.explain("schema", [None, old], [None, other], change, change) is None


def test_table_changes_and_dropped_tables_are_explained_as_far_as_the_page_says() -> None:
    drop = [
        Change("shop", "", "DDL", {"ddl": sql}, 1, 1) for sql in ("DROP TABLE `a`", "DROP TABLE a, b", "ALTER TABLE a")
    ]
    explain = debezium_rules.explain
    assert explain("ddl", "DROP TABLE `a`", "DROP TABLE a, b", drop[0], drop[1]) == debezium_rules.DROP_TABLE
    assert explain("ddl", "DROP TABLE `a`", "ALTER TABLE a", drop[0], drop[2]) is None
    ours = [{"table": {"columns": [{"name": "e", "length": None}], "defaultCharsetName": None}}]
    theirs = [{"table": {"columns": [{"name": "e", "length": 1}], "defaultCharsetName": "utf8mb4"}}]
    assert explain("tableChanges", theirs, ours, drop[2], drop[2]) == debezium_rules.TABLE_CHANGES
    ours[0]["table"]["columns"].clear()
    assert explain("tableChanges", theirs, ours, drop[2], drop[2]) is None
