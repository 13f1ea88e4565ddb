"""What becomes of a table's changes on their way out: parts by partition, conditions, columns, masks, their order."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headrace.errors import NotUnderstood
from headrace.large_values import LargeValue
from headrace.model import ABSENT, Column, Operation, Row, RowsChange, SnapshotRows, TableSchema
from headrace.pipeline.projection import Projections
from headrace.pipeline.table_projection import Part, TableProjection
from headrace.rules.hashes import kafka_partition
from tests.examples import examples
from tests.streams import settings

SCHEMA = TableSchema(
    "shop",
    "orders",
    (
        Column("id", "int", 4),
        Column("user_id", "int", 4),
        Column("city", "varchar(20)", 12, charset="utf8mb4"),
        Column("phone", "varchar(20)", 12, charset="utf8mb4"),
    ),
    (0,),
)
START = 1000
PARTITIONS = 4


def plan(route: dict[str, Any] | None = None, **filters: Any) -> TableProjection:
    return Projections(settings(route={"topic": "shop", **(route or {})}, filter=filters)).of(SCHEMA)


def spread(columns: str = "$pk$") -> dict[str, Any]:
    return {"partition_hash": rf"shop\.orders:{columns}", "partitions": PARTITIONS}


def row(id_: Any, user: Any = 1, city: Any = "北京", phone: Any = "555") -> Row:
    return (id_, user, city, phone)


def insert(*rows: Row) -> RowsChange:
    return RowsChange(SCHEMA, Operation.INSERT, list(rows), None, START, 5, "g:1")


def update(*pairs: tuple[Row, Row]) -> RowsChange:
    return RowsChange(SCHEMA, Operation.UPDATE, [b for _, b in pairs], [a for a, _ in pairs], START, 5, "g:1")


def reported(parts: list[Part]) -> list[tuple[int, str, list[Any], int]]:
    """Partition, operation, ids and first number of each part."""
    return [(partition, str(part.operation), [r[0] for r in part.rows], part.pos) for partition, part in parts]


def partition_of(id_: int) -> int:
    return kafka_partition(b"%d" % id_, PARTITIONS)


def test_without_rules_a_change_goes_out_as_it_is() -> None:
    change = insert(row(1), row(2))
    made = plan()
    assert made.simple
    assert made.whole(change) is change
    assert (made.address(made.partition), made.partition) == ("shop", 0)


def test_rows_are_cut_by_partition_and_keep_their_order_and_numbers() -> None:
    change = insert(*(row(i) for i in range(20)))
    parts = plan(spread()).slice(change)
    assert sorted(r[0] for _, part in parts for r in part.rows) == list(range(20))
    for partition, part in parts:
        ids = [r[0] for r in part.rows]
        assert ids == [i for i in range(20) if partition_of(i) == partition]
        assert list(part.row_indexes or ()) == ids
        assert part.pos == START + ids[0]
        assert part.gtid == "g:1"


def test_an_event_whose_rows_all_go_to_one_partition_is_not_copied() -> None:
    change = insert(row(7), row(7), row(7))
    assert plan(spread()).slice(change) == [(partition_of(7), change)]


def test_a_changed_key_is_a_delete_there_and_an_insert_here() -> None:
    new = next(i for i in range(2, 99) if partition_of(i) != partition_of(1))
    parts = plan(spread()).slice(update((row(1), row(new))))
    assert reported(parts) == [
        (partition_of(1), "DELETE", [1], START),
        (partition_of(new), "INSERT", [new], START + 1),
    ]
    assert [part.other for _, part in parts] == [row(new), row(1)]


def test_a_changed_key_in_the_same_partition_stays_an_update() -> None:
    new = next(i for i in range(2, 99) if partition_of(i) == partition_of(1))
    change = update((row(1), row(new)))
    assert plan(spread()).slice(change) == [(partition_of(1), change)]


def test_a_row_that_moves_between_partitions_without_a_new_primary_key_has_its_delete_first() -> None:
    made = plan(spread("user_id"))
    ((there, gone), (here, come)) = made.slice(update((row(5, user=1), row(5, user=2))))
    assert (there, here) == (kafka_partition(b"1", PARTITIONS), kafka_partition(b"2", PARTITIONS))
    assert (gone.operation, come.operation) == (Operation.DELETE, Operation.INSERT)
    assert gone.pos < come.pos


def test_a_row_comes_under_the_condition_as_an_insert_and_leaves_it_as_a_delete() -> None:
    made = plan(where=[{"tables": r"shop\.orders", "rows": 'city = "北京"'}])
    near, far = row(1), row(1, city="上海")
    assert reported(made.slice(update((far, near)))) == [(0, "INSERT", [1], START)]
    assert reported(made.slice(update((near, far)))) == [(0, "DELETE", [1], START)]
    assert reported(made.slice(update((near, row(1, phone="7"))))) == [(0, "UPDATE", [1], START)]
    assert made.slice(update((far, row(1, city="广州")))) == []
    assert reported(made.slice(insert(row(1), row(2, city="上海"), row(3), row(4, city=None)))) == [
        (0, "INSERT", [1, 3], START)
    ]
    assert made.slice(insert(far)) == []


def test_only_the_operations_that_are_asked_for_are_published() -> None:
    made = plan(operations=["insert", "update"])
    gone = RowsChange(SCHEMA, Operation.DELETE, [row(1), row(2)], None, START, 5, "g:1")
    assert made.slice(gone) == []
    assert reported(made.slice(insert(row(1), row(2)))) == [(0, "INSERT", [1, 2], START)]
    assert reported(made.slice(update((row(1), row(1, user=2))))) == [(0, "UPDATE", [1], START)]
    assert plan(operations=["delete"]).slice(insert(row(1))) == []
    assert reported(plan(operations=["delete"]).slice(gone)) == [(0, "DELETE", [1, 2], START)]


def test_an_update_that_a_condition_makes_an_insert_or_a_delete_counts_as_that() -> None:
    where = [{"tables": r"shop\.orders", "rows": 'city = "北京"'}]
    near, far = row(1), row(1, city="上海")
    kept = plan(where=where, operations=["insert", "update"])
    assert kept.slice(update((near, far))) == []
    assert reported(kept.slice(update((far, near)))) == [(0, "INSERT", [1], START)]
    only = plan(where=where, operations=["update"])
    assert only.slice(update((far, near))) == []
    assert reported(only.slice(update((near, row(1, phone="7"))))) == [(0, "UPDATE", [1], START)]


def test_both_halves_of_an_update_that_moves_to_another_partition_are_an_update() -> None:
    new = next(i for i in range(2, 99) if partition_of(i) != partition_of(1))
    moved = update((row(1), row(new)))
    halves = [(partition_of(1), "DELETE", [1], START), (partition_of(new), "INSERT", [new], START + 1)]
    assert reported(plan(spread(), operations=["update"]).slice(moved)) == halves
    assert plan(spread(), operations=["insert", "delete"]).slice(moved) == []


def test_rows_of_a_snapshot_are_published_whatever_operations_are() -> None:
    read = replace(insert(row(1)), snapshot=SnapshotRows("s", "initial", "true"))
    assert reported(plan(operations=["delete"]).slice(read)) == [(0, "INSERT", [1], START)]


def test_updates_that_change_no_published_column_are_left_out_when_asked_for() -> None:
    change = update(
        (row(1), row(1)),
        (row(2), row(2, city="上海")),
        (row(3), row(3, phone="7")),
        (row(4), row(4, user=9)),
    )
    hidden = {"unchanged_updates": "skip", "exclude_columns": r"shop\.orders:phone"}
    made = plan(**hidden)
    ((_, part),) = made.slice(change)
    assert [r[0] for r in part.rows] == [2, 4]
    assert [r[0] for r in part.before or ()] == [2, 4]
    assert (part.pos, list(part.row_indexes or ())) == (START + 1, [1, 3])
    assert made.slice(update((row(1), row(1, phone="7")))) == []
    assert reported(plan(exclude_columns=r"shop\.orders:phone").slice(change))[0][2] == [1, 2, 3, 4]
    assert reported(made.slice(insert(row(1)))) == [(0, "INSERT", [1], START)]


def test_what_a_mask_hides_is_compared_as_it_is_published() -> None:
    mask = {"tables": r"shop\.orders", "columns": "phone", "mask": "truncate", "length": 1}
    made = plan(unchanged_updates="skip", mask=[mask])
    assert made.slice(update((row(1, phone="71"), row(1, phone="72")))) == []
    assert reported(made.slice(update((row(1, phone="71"), row(1, phone="81"))))) == [(0, "UPDATE", [1], START)]


def test_what_is_not_known_of_an_update_counts_as_a_change() -> None:
    made = plan(unchanged_updates="skip", exclude_columns=r"shop\.orders:phone")
    assert made.slice(update((row(1, phone=ABSENT), row(1, phone="7")))) == []
    for pair in ((row(1, city=ABSENT), row(1, city=ABSENT)), (row(1, city=ABSENT), row(1))):
        assert reported(made.slice(replace(update(pair), partial=True))) == [(0, "UPDATE", [1], START)]


def test_a_row_that_moves_or_comes_under_a_condition_is_never_unchanged() -> None:
    new = next(i for i in range(2, 99) if kafka_partition(b"%d" % i, 4) != kafka_partition(b"1", 4))
    hidden = {"unchanged_updates": "skip", "exclude_columns": r"shop\.orders:user_id"}
    made = plan(spread("user_id"), **hidden)
    assert len(made.slice(update((row(5, user=1), row(5, user=new))))) == 2
    where = [{"tables": r"shop\.orders", "rows": "user_id = 1"}]
    made = plan(**hidden, where=where)
    assert reported(made.slice(update((row(1, user=2), row(1, user=1))))) == [(0, "INSERT", [1], START)]
    assert made.slice(update((row(1), row(1)))) == []


def test_the_first_condition_that_names_a_table_counts() -> None:
    made = plan(
        where=[
            {"tables": r"shop\.orders", "rows": "id > 10"},
            {"tables": r"shop\..*", "rows": "id > 20"},
        ]
    )
    assert reported(made.slice(insert(row(5), row(15), row(25)))) == [(0, "INSERT", [15, 25], START + 1)]


def test_columns_are_left_out_but_never_those_of_the_key() -> None:
    made = plan(exclude_columns=r"shop\.orders:phone/id", mask=[])
    assert [column.name for column in made.schema.columns] == ["id", "user_id", "city"]
    assert made.schema.keys == (0,)
    change = made.whole(update((row(1), row(2))))
    assert (change.before, change.rows) == ([(1, 1, "北京")], [(2, 1, "北京")])
    only = plan(include_columns=r"shop\.orders:City")
    assert [column.name for column in only.schema.columns] == ["id", "city"]


def test_a_masked_column_is_masked_before_and_after_and_null_stays_null() -> None:
    masks = [{"tables": r"shop\..*", "columns": "PHONE", "mask": "truncate", "length": 2}]
    change = plan(mask=masks).whole(update((row(1), row(1, phone=None))))
    assert change.before == [row(1, phone="55")]
    assert change.rows == [row(1, phone=None)]
    partial = RowsChange(SCHEMA, Operation.INSERT, [row(1, phone=ABSENT)], None, START, 5, "", partial=True)
    assert plan(mask=masks).whole(partial).rows == [row(1, phone=ABSENT)]


def test_parts_are_masked_too() -> None:
    made = plan(spread(), mask=[{"tables": ".*", "columns": "phone", "mask": "fixed", "value": "***"}])
    new = next(i for i in range(2, 99) if partition_of(i) != partition_of(1))
    for _, part in made.slice(update((row(1), row(new)))):
        whole = made.whole(part)
        assert [r[3] for r in whole.rows] == ["***"]
        assert whole.other is not None
        assert whole.other[3] == "***"
        assert whole.operation is part.operation
        assert whole.pos == part.pos


def test_keys_say_which_rows_have_to_stay_in_order() -> None:
    made = plan()
    assert made.keys(insert(row(1), row(2))) == [("shop.orders 1",), ("shop.orders 2",)]
    assert made.keys(update((row(1), row(1)), (row(2), row(3))))[1] == ("shop.orders 2", "shop.orders 3")
    rule = r"shop\.orders:user_id"
    assert plan(spread("user_id")).keys(insert(row(1, user=9))) == [(f"{rule} 9", "shop.orders 1")]
    assert plan(spread("user_id^city")).keys(insert(row(1, user=9)))[0][0] == f'{rule}^city ["9","北京"]'
    (there, gone), (here, come) = plan(spread("user_id")).slice(update((row(5, user=1), row(5, user=2))))
    assert there != here
    shared = {*plan(spread("user_id")).keys(gone)[0]} & {*plan(spread("user_id")).keys(come)[0]}
    assert shared == {"shop.orders 5"}, "the halves of a row that moves stay in order"
    together = {"dynamic_topic": r"all:shop\..*"}
    assert plan(together).keys(insert(row(1))) == [(r"all:shop\..* 1",)], "tables of one topic rule share their keys"


def test_the_key_of_a_masked_column_does_not_contain_its_value() -> None:
    made = plan(mask=[{"tables": ".*", "columns": "id", "mask": "hash", "salt": "s"}])
    ((key,),) = made.keys(insert(row(123456)))
    assert key.startswith("shop.orders ")
    assert "123456" not in key
    assert made.keys(insert(row(123456))) == [(key,)]


def test_the_key_of_an_excluded_column_does_not_contain_its_value() -> None:
    made = plan(spread("phone"), exclude_columns=r"shop\.orders:phone")
    ((key, _),) = made.keys(insert(row(1, phone="13800138000")))
    assert "138" not in key
    masks = [{"tables": ".*", "columns": "city", "mask": "hash", "salt": "s"}]
    ((salted, _),) = plan(spread("phone"), exclude_columns=r"shop\.orders:phone", mask=masks).keys(
        insert(row(1, phone="13800138000"))
    )
    assert salted != key, "where there is a salt it makes the hash"


def test_a_row_without_the_column_that_decides_stops_loudly() -> None:
    made = plan(spread("user_id"))
    with pytest.raises(NotUnderstood, match=r"shop\.orders lacks the column user_id.*the server's binlog_row_image"):
        made.slice(update((row(1, user=ABSENT), row(1, user=2))))
    made = plan(where=[{"tables": ".*", "rows": "city = 'a'"}])
    with pytest.raises(NotUnderstood, match="lacks the column city"):
        made.slice(insert(row(1, city=ABSENT)))


@pytest.mark.parametrize(
    ("filters", "route", "reported"),
    [
        ({"where": [{"tables": ".*", "rows": "citi = 'a'"}]}, {}, "citi"),
        ({"include_columns": r"shop\.orders:id/phon"}, {}, "phon; did you mean phone"),
        ({"mask": [{"tables": ".*", "columns": "id", "mask": "null"}]}, {}, "id"),
        ({}, {"partition_hash": r"shop\.orders:uid", "partitions": 2}, "uid"),
    ],
)
def test_a_rule_that_does_not_fit_the_table_stops_loudly(
    filters: dict[str, Any], route: dict[str, Any], reported: str
) -> None:
    with pytest.raises(NotUnderstood, match=rf"does not fit the table shop\.orders.*{reported}"):
        plan(route, **filters)


# -- order, shown by a model of consumers ---------------------------------------------------------------------------

Documents = dict[int, tuple[int, Row | None]]


class Consumer:
    """Keeps a document a primary key, as Elasticsearch with external versions does: an older one changes nothing."""

    def __init__(self) -> None:
        self.documents: Documents = {}

    def take(self, part: RowsChange) -> None:
        for i, after in enumerate(part.rows):
            version = part.pos + i
            if part.operation is Operation.DELETE:
                self._put(after[0], version, None)
                continue
            if part.before is not None and part.before[i][0] != after[0]:
                self._put(part.before[i][0], version, None)
            self._put(after[0], version, after)

    def _put(self, key: int, version: int, document: Row | None) -> None:
        if version >= self.documents.get(key, (0, None))[0]:
            self.documents[key] = version, document


@hypothesis_settings(max_examples=examples(400), deadline=None)
@given(
    st.integers(),
    st.sampled_from(["$pk$", "user_id", "user_id^city"]),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=25),
)
def test_whatever_partition_is_read_first_the_last_word_about_a_row_wins(
    seed: int, columns: str, steps: list[tuple[int, int, int]]
) -> None:
    """One event updates rows one after the other, moves keys and partitions, and comes back to the same rows."""
    table: dict[int, Row] = {i: row(i, user=i % 3) for i in range(4)}
    pairs = []
    for old, new, user in steps:
        if old in table and (new == old or new not in table):
            before = table.pop(old)
            table[new] = row(new, user=user, phone=str(len(pairs)))
            pairs.append((before, table[new]))
    if not pairs:
        return
    made = plan(spread(columns))
    first = insert(*(row(i, user=i % 3) for i in range(4)))
    first.pos = START - 100
    queues: dict[int, list[RowsChange]] = defaultdict(list)
    numbers = []
    for change in (first, update(*pairs)):
        for partition, part in made.slice(change):
            queues[partition].append(part)
            numbers.append(part.pos + len(part.rows) - 1)
    assert max(numbers) < START + 2 * len(pairs)
    consumer, dice = Consumer(), random.Random(seed)
    while waiting := [queue for queue in queues.values() if queue]:
        consumer.take(dice.choice(waiting).pop(0))
    assert {key: document for key, (_, document) in consumer.documents.items() if document} == table


def test_which_rows_are_shown_is_known_before_they_go_out() -> None:
    assert not plan().conditional
    made = plan(where=[{"tables": ".*", "rows": "city = '北京' and user_id < 5"}])
    assert made.conditional
    assert [made.shows(row(1, user)) for user in (1, 5, None, ABSENT)] == [True, False, False, False]
    assert made.shows(row(1, city=LargeValue((b"", 0, 0), text=lambda _: iter(["北", "京"]))))


def test_a_row_is_published_by_the_columns_that_decide_alone() -> None:
    made = plan(spread("user_id"), where=[{"tables": ".*", "rows": "CITY = '北京' or phone is null"}])
    assert made.decides == {"id", "user_id", "city", "phone"}
    assert plan().decides == {"id"}
    made = plan(spread("user_id"), where=[{"tables": ".*", "rows": "city = '北京'"}])
    assert reported(made.slice(insert(row(1, 7, phone=ABSENT)))) == [(partition_of(7), "INSERT", [1], START)]
    with pytest.raises(NotUnderstood, match="lacks the column city"):
        made.slice(insert(row(1, 7, city=ABSENT)))
