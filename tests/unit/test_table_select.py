"""The statements that read a table: names and keys can be anything and stay what they are."""

from __future__ import annotations

import pytest

from headrace.model import Column, TableSchema
from headrace.mysql.snapshot.select import TableSelect, expression_of, key_literal
from headrace.ports.tables import KeyOutdated
from tests.unit.test_query_stream import row


def column(name: str, kind: str, charset: str = "", labels: tuple[str, ...] = ()) -> Column:
    return Column(name, kind, 0, charset=charset, labels=labels)


def hexed(*parts: bytes) -> tuple[str, ...]:
    return tuple(part.hex() for part in parts)


def select(
    *columns: Column, keys: tuple[int, ...] = (0,), wanted: frozenset[str] = frozenset(), where: str = ""
) -> TableSelect:
    return TableSelect(TableSchema("shop", "t", columns, keys), wanted, where)


ID = column("id", "bigint")


def test_all_columns_are_named_and_the_key_gives_the_order() -> None:
    made = select(ID, column("v", "text", "utf8mb4"))
    assert made.sql(None, 5) == "SELECT `id`, `v` FROM `shop`.`t` ORDER BY `t`.`id` LIMIT 5"
    assert made.sql(hexed(b"-7"), 5) == (
        "SELECT `id`, `v` FROM `shop`.`t` WHERE (`t`.`id` > -7) ORDER BY `t`.`id` LIMIT 5"
    )


def test_a_key_of_several_columns_is_entered_by_its_first() -> None:
    made = select(ID, column("b", "int"), column("c", "int"), keys=(2, 0, 1))
    assert "(`t`.`c` >= 1 AND (`t`.`c` > 1 OR (`t`.`c` = 1 AND " in made.sql(hexed(b"1", b"2", b"3"), 9)
    assert made.sql(None, 9).endswith("ORDER BY `t`.`c`, `t`.`id`, `t`.`b` LIMIT 9")
    raw = b"before" + row(b"10", None, b"30")
    assert made.key_of(raw, 6, len(raw)) == hexed(b"30", b"10", b"")


def test_a_range_of_keys_has_its_last_and_not_the_one_before_its_first() -> None:
    made = select(ID, column("b", "int"), keys=(0, 1), where="b = 3")
    assert made.boundary(None, 10) == "SELECT `id`, `b` FROM `shop`.`t` ORDER BY `t`.`id`, `t`.`b` LIMIT 9, 1"
    first, last = hexed(b"1", b"2"), hexed(b"5", b"6")
    assert " WHERE (`t`.`id` >= 1 AND " in made.boundary(first, 10)
    assert made.within(first, last) == (
        "SELECT `id`, `b` FROM `shop`.`t` WHERE (b = 3\n)"
        " AND (`t`.`id` >= 1 AND (`t`.`id` > 1 OR (`t`.`id` = 1 AND `t`.`b` > 2)))"
        " AND (`t`.`id` <= 5 AND (`t`.`id` < 5 OR (`t`.`id` = 5 AND `t`.`b` <= 6)))"
        " ORDER BY `t`.`id`, `t`.`b`"
    )


def test_a_range_by_an_enum_has_the_number_of_no_member() -> None:
    made = select(column("e", "enum('a','b','c')", "utf8mb4", ("a", "b", "c")))
    assert "(`t`.`e` IN (0, 1, 2))" in made.within(None, hexed(b"2"))
    assert "(`t`.`e` IN (0))" in made.within(None, hexed(b"0"))


def test_a_table_without_a_key_is_selected_as_a_whole() -> None:
    assert select(ID, keys=()).sql(None, 5) == "SELECT `id` FROM `shop`.`t`"


def test_only_the_wanted_columns_and_the_key_are_selected() -> None:
    made = select(column("A", "int"), ID, column("B", "int"), keys=(1,), wanted=frozenset({"b"}))
    assert made.sql(None, 1).startswith("SELECT `id`, `B` FROM")
    assert list(made.present) == [1, 2]


def test_a_condition_is_separate_whatever_it_ends_with() -> None:
    assert "WHERE (a = 1 OR b = 2 -- why\n) AND (`t`.`id` > 1)" in select(ID, where="a = 1 OR b = 2 -- why").sql(
        hexed(b"1"), 1
    )


def test_names_can_not_leave_their_quotes() -> None:
    made = TableSelect(TableSchema("s`; --", "t`x", (column("c`d\\'", "int"),), (0,)), frozenset(), "")
    assert made.sql(None, 1) == "SELECT `c``d\\'` FROM `s``; --`.`t``x` ORDER BY `t``x`.`c``d\\'` LIMIT 1"


@pytest.mark.parametrize(
    ("kind", "charset", "expression"),
    [
        ("float", "", "`c` - 0e0"),
        ("double(10,2)", "", "`c` - 0e0"),
        ("enum('a')", "utf8mb4", "CAST(`c` AS UNSIGNED)"),
        ("set('a')", "utf8mb4", "CAST(`c` AS UNSIGNED)"),
        ("decimal(10,2)", "", "`c`"),
        ("bit(8)", "", "`c`"),
    ],
)
def test_what_is_selected_says_all_of_a_value(kind: str, charset: str, expression: str) -> None:
    assert expression_of(column("c", kind, charset)) == expression


@pytest.mark.parametrize(
    ("kind", "charset", "raw", "literal"),
    [
        ("bigint unsigned", "", b"18446744073709551615", "18446744073709551615"),
        ("decimal(30,10)", "", b"-0.0000000001", "-0.0000000001"),
        ("float", "", b"1.100000023841858", "1.100000023841858e0"),
        ("double", "", b"-1e300", "-1e300"),
        ("bit(9)", "", b"\1\xff", "511"),
        ("datetime(6)", "", b"0000-00-00 00:00:00.000000", "'0000-00-00 00:00:00.000000'"),
        ("time", "", b"-838:59:59", "'-838:59:59'"),
        ("year", "", b"0000", "'0000'"),
        ("varchar(9)", "gbk", b"\xd6\xd0\\'", "_gbk x'd6d05c27'"),
        ("varchar(9)", "utf8mb4", b"", "_utf8mb4 x''"),
        ("varbinary(9)", "binary", b"\0'\\", "_binary x'00275c'"),
        ("uuid", "", b"11111111-2222-3333-4444-555555555555", "'11111111-2222-3333-4444-555555555555'"),
        ("inet6", "", b"::ffff:1.2.3.4", "'::ffff:1.2.3.4'"),
    ],
)
def test_a_key_is_written_so_that_it_equals_the_columns_value(
    kind: str, charset: str, raw: bytes, literal: str
) -> None:
    assert key_literal(column("c", kind, charset), raw.hex()) == literal


def test_the_members_of_an_enum_that_follow_are_listed() -> None:
    made = select(column("e", "enum('a','b','c')", "utf8mb4", ("a", "b", "c")), ID, keys=(0, 1))
    assert "(`t`.`e` IN (2, 3) AND (`t`.`e` IN (3) OR (`t`.`e` = 2 AND `t`.`id` > 7)))" in made.sql(
        hexed(b"2", b"7"), 1
    )
    assert "`t`.`e` IN (3) AND (FALSE OR (`t`.`e` = 3 AND" in made.sql(hexed(b"3", b"7"), 1)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("int", b"1 OR 1".hex()),
        ("int", ""),
        ("date", b"'; DROP".hex()),
        ("uuid", b"'".hex()),
        ("double", b"inf".hex()),
        ("int", "not hex"),
    ],
)
def test_a_stored_key_that_is_none_reaches_no_statement(kind: str, part: str) -> None:
    with pytest.raises(KeyOutdated, match="stored key of column `c`"):
        key_literal(column("c", kind), part)


def test_a_key_of_another_table_is_refused() -> None:
    with pytest.raises(KeyOutdated, match="has 2 parts, its table 1"):
        select(ID).sql(hexed(b"1", b"2"), 1)
