"""Messages into document actions: what is applied, with which id and version, and what becomes a dead letter."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_documents.documents import Action, Rules
from headrace_documents.errors import MessageError
from tests.canal_messages import Parsed, parse

OWNER = ("shop", "serve_sync")
POS = 3563400000000000000
MYSQL_TYPE = {"id": "bigint", "name": "varchar(64)"}


def message(**changes: Any) -> bytes:
    base: dict[str, Any] = {
        "data": [{"id": "1", "name": "家庭保洁"}],
        "database": "shop",
        "es": 1700000000000,
        "gtid": "",
        "id": 1,
        "isDdl": False,
        "mysqlType": MYSQL_TYPE,
        "old": None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": -5, "name": 12},
        "table": "serve_sync",
        "ts": 1700000000001,
        "type": "INSERT",
        "_pos": str(POS),
    }
    base.update(changes)
    return json.dumps({name: value for name, value in base.items() if value is not ...}).encode()


def actions(rules: Rules | None = None, **changes: Any) -> list[Action]:
    return parse(message(**changes), rules or Rules()).actions


def reason(value: bytes | None) -> str:
    with pytest.raises(MessageError) as caught:
        parse(value, Rules())
    return str(caught.value)


def test_insert_is_an_index_with_the_position_as_version() -> None:
    assert actions() == [Action("shop.serve_sync", "1", POS, {"id": 1, "name": "家庭保洁"}, 0, OWNER)]


def test_a_tombstone_asks_for_nothing() -> None:
    assert parse(None, Rules()) == Parsed([], 0)


def test_messages_of_canal_itself_are_ordered_by_time_and_batch() -> None:
    def version(**changes: Any) -> int:
        return actions(_pos=..., **changes)[0].version

    assert version(id=1) < version(id=2) < version(es=1700000001000, id=1)
    assert version(id=2) == version(id=2, es=1700000000999)  # Canal has whole seconds
    rows = [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}]
    assert len({action.version for action in actions(_pos=..., data=rows)}) == 1


def test_the_position_may_be_in_the_header_alone() -> None:
    (action,) = parse(message(_pos=...), Rules(), headers={"headrace-pos": str(POS).encode()}).actions
    assert action.version == POS
    assert parse(message(_pos=...), Rules(), headers={"headrace-pos": str(POS)}).actions == [action]
    with pytest.raises(MessageError, match="the header headrace-pos is not"):
        parse(message(_pos=...), Rules(), headers={"headrace-pos": b"x"})


def test_each_row_of_a_message_has_the_next_version() -> None:
    rows = [{"id": "1", "name": "a"}, {"id": "2", "name": None}, {"id": "1", "name": "b"}]
    assert [(a.id, a.version, a.row) for a in actions(data=rows)] == [
        ("1", POS, 0),
        ("2", POS + 1, 1),
        ("1", POS + 2, 2),
    ]


def test_delete() -> None:
    assert actions(type="DELETE") == [Action("shop.serve_sync", "1", POS, None, 0, OWNER)]


def test_delete_needs_only_the_key() -> None:
    assert actions(type="DELETE", data=[{"id": "1"}])[0].body is None


def test_update_of_other_columns_is_one_index() -> None:
    found = actions(type="UPDATE", old=[{"name": "before"}])
    assert [(a.id, a.body is None) for a in found] == [("1", False)]


def test_a_changed_key_is_a_delete_of_the_old_id_and_an_index_of_the_new() -> None:
    found = actions(type="UPDATE", data=[{"id": "2", "name": "x"}], old=[{"id": "1"}])
    assert [(a.id, a.version, a.body is None) for a in found] == [("1", POS, True), ("2", POS, False)]


def test_a_key_named_in_old_but_the_same_is_no_change() -> None:
    assert len(actions(type="UPDATE", old=[{"id": "1", "name": "before"}])) == 1


def test_compound_keys_are_json_arrays_and_can_not_be_confused() -> None:
    row = {"a": 'x","y', "b": "z"}
    other = {"a": "x", "b": 'y","z'}
    found = actions(data=[row, other], pkNames=["a", "b"], mysqlType={})
    assert json.loads(found[0].id) == ['x","y', "z"]
    assert found[0].id != found[1].id


def test_a_changed_part_of_a_compound_key() -> None:
    found = actions(
        type="UPDATE", data=[{"a": "1", "b": "3"}], old=[{"b": "2"}], pkNames=["a", "b"], mysqlType={}, sqlType=None
    )
    assert [(a.id, a.body is None) for a in found] == [('["1","2"]', True), ('["1","3"]', False)]


@pytest.mark.parametrize(
    ("mysql_type", "sql_type", "text", "value"),
    [
        ("bigint(20) unsigned", 3, "18446744073709551615", 18446744073709551615),
        ("tinyint(1)", -7, "1", 1),
        ("INT", 4, "-5", -5),
        ("mediumint unsigned", 4, "5", 5),
        ("year", 12, "2024", 2024),
        ("double", 8, "1.5e3", 1500.0),
        ("float(7,2)", 7, "0.25", 0.25),
        ("decimal(10,2)", 3, "12.50", "12.50"),
        ("json", 12, '{"a":1}', '{"a":1}'),
        ("varchar(64)", 12, "007", "007"),
        ("datetime(3)", 93, "2024-01-01 00:00:00.000", "2024-01-01 00:00:00.000"),
        ("", 4, "7", 7),
        ("", 8, "7", 7.0),
        ("int", 4, "not a number", "not a number"),
        ("double", 8, "1e999", "1e999"),
    ],
)
def test_typed_values(mysql_type: str, sql_type: int, text: str, value: object) -> None:
    found = actions(
        data=[{"id": "1", "c": text}], mysqlType={"id": "int", "c": mysql_type}, sqlType={"id": 4, "c": sql_type}
    )
    assert found[0].body is not None
    got = found[0].body["c"]
    assert (got, type(got)) == (value, type(value))


def test_values_as_strings_and_decimals_as_numbers_when_configured() -> None:
    types = {"id": "int", "c": "decimal(10,2)"}
    row = {"id": "1", "c": "12.50"}
    assert actions(Rules(types="strings"), data=[row], mysqlType=types)[0].body == {"id": "1", "c": "12.50"}
    assert actions(Rules(decimals="number"), data=[row], mysqlType=types)[0].body == {"id": 1, "c": 12.5}


def test_index_names() -> None:
    assert actions(table="Serve_Sync")[0].target == "shop.serve_sync"
    assert actions(Rules(index_template="services"))[0].target == "services"
    assert actions(Rules(index_template="services", id_prefix="{table}:"))[0].id == "serve_sync:1"
    assert "can't be the name of an index" in reason(message(table="a b"))
    assert "can't be the name of an index" in reason(message(database="_x"))


@pytest.mark.parametrize("kind", ["QUERY", "TRANSACTIONBEGIN", "TRANSACTIONEND"])
def test_texts_of_statements_and_marks_of_transactions_are_passed_over(kind: str) -> None:
    parsed = parse(message(isDdl=False, type=kind, data=None, pkNames=None, table=""), Rules())
    assert (parsed.actions, parsed.rows) == ([], 0)


@pytest.mark.parametrize("kind", ["TRUNCATE", "ERASE", "ALTER", "CREATE"])
def test_ddl_is_passed_over(kind: str) -> None:
    parsed = parse(message(isDdl=True, type=kind, data=None, pkNames=None, _pos=...), Rules())
    assert (parsed.actions, parsed.ignored) == ([], f"{kind} shop.serve_sync")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", "the message is empty"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "neither a message of Canal nor an event of Debezium"),
        (message(database=None), "'database' is not a string"),
        (message(type="REPLACE"), "type 'REPLACE' is none of"),
        (message(_pos=..., es=None), "neither _pos nor es and id"),
        (message(_pos=POS), "_pos is not a string"),
        (message(_pos="-1"), "_pos is not a string"),
        (message(_pos="٣"), "_pos is not a string"),
        (message(_pos="1" * 5000), "_pos is not a string"),
        (message(_pos="0"), "_pos is not between"),
        (message(_pos=str(1 << 63)), "_pos is not between"),
        (message(_pos=str((1 << 63) - 1), data=[{"id": "1"}] * 2), "_pos is too large"),
        (message(data=None), "'data' is not a list"),
        (message(data=[]), "'data' is not a list"),
        (message(data=["x"]), "row 0 of 'data'"),
        (message(data=[{"id": 1, "name": "x"}]), "neither a string nor null"),
        (message(pkNames=None), "has no primary key"),
        (message(pkNames=[]), "has no primary key"),
        (message(pkNames=[1]), "'pkNames'"),
        (message(pkNames=["other"]), "key column 'other'"),
        (message(data=[{"id": None, "name": "x"}]), "key column 'id'"),
        (message(data=[{"id": "", "name": "x"}]), "key's value is empty"),
        (message(data=[{"id": "保" * 171, "name": "x"}]), "longer than 512 bytes"),
        (message(data=[{"id": "1"}]), "row 0 is not whole, it lacks name"),
        (message(type="UPDATE", old=[]), "'old' has not one entry"),
        (message(type="UPDATE", old=[1]), "an entry of 'old'"),
        (message(mysqlType=[]), "'mysqlType' is not an object"),
    ],
)
def test_what_is_not_ours_has_a_reason(value: bytes | None, text: str) -> None:
    assert text in reason(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)
    )
)
def test_any_json_is_either_read_or_refused(value: object) -> None:
    for name in ("data", "old", "pkNames", "mysqlType", "sqlType", "_pos", "type", "isDdl", "table"):
        with contextlib.suppress(MessageError):
            parse(message(**{"type": "UPDATE", name: value}), Rules())


@given(st.binary())
def test_any_bytes_are_either_read_or_refused(value: bytes) -> None:
    with pytest.raises(MessageError):
        parse(value, Rules())
