"""Canal's flat JSON: parsed back, field by field, whatever stands in names and values."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.canal import CanalFormat
from headrace.model import Column, Operation, RowsChange, TableSchema

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))


def change(
    names: list[str], rows: list[tuple[object, ...]], before: list[tuple[object, ...]] | None = None
) -> RowsChange:
    columns = tuple(Column(name, "int" if i == 0 else "varchar(9)", 12) for i, name in enumerate(names))
    operation = Operation.INSERT if before is None else Operation.UPDATE
    return RowsChange(
        TableSchema("shop", "t", columns, (0,)), operation, rows, before, 1 << 40, 1_700_000_000_123_456, "u:1"
    )


@given(st.lists(NAMES, min_size=2, max_size=5, unique=True), st.data())
def test_any_names_and_values_come_back(names: list[str], data: st.DataObject) -> None:
    rows = [(n, *(data.draw(VALUES) for _ in names[1:])) for n in range(data.draw(st.integers(1, 4)))]
    fmt, made = CanalFormat(), change(names, rows)
    expected = [{k: None if v is None else str(v) for k, v in zip(names, row, strict=True)} for row in rows]
    whole = json.loads(fmt.encode(made, 5))
    assert whole["data"] == expected
    single = [json.loads(message) for message in fmt.encode_each(made, 5)]
    assert [m["data"] for m in single] == [[row] for row in expected]
    assert [int(m["_pos"]) for m in single] == [made.pos + i for i in range(len(rows))]


def test_the_fields_are_those_of_a_flat_message() -> None:
    message = json.loads(CanalFormat().encode(change(["id", "名"], [(1, "b")], [(1, "a")]), 1_700_000_000_999))
    assert message == {
        "data": [{"id": "1", "名": "b"}],
        "database": "shop",
        "es": 1_700_000_000_123,
        "gtid": "u:1",
        "id": 1,
        "isDdl": False,
        "mysqlType": {"id": "int", "名": "varchar(9)"},
        "old": [{"名": "a"}],
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": 12, "名": 12},
        "table": "t",
        "ts": 1_700_000_000_999,
        "type": "UPDATE",
        "_pos": str(1 << 40),
    }


def test_messages_of_one_process_are_counted() -> None:
    fmt = CanalFormat()
    made = change(["id", "a"], [(1, "x"), (2, "y")])
    ids = [json.loads(m)["id"] for m in (fmt.encode(made, 1), *fmt.encode_each(made, 1), fmt.encode(made, 1))]
    assert ids == [1, 2, 3, 4]
