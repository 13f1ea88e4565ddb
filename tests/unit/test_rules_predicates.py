"""Conditions on rows: SQL's three values, how each type compares, and what is refused with its place."""

from __future__ import annotations

import re
import sqlite3
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model import ABSENT, Column
from headrace.rules.predicate_parser import parse_condition
from headrace.rules.predicate_sql import columns_of, to_sql
from headrace.rules.predicates import ColumnAbsent, bind
from tests.examples import examples

TABLE = {
    "id": (Column("id", "bigint unsigned", 3, unsigned=True), 7),
    "city": (Column("city", "varchar(20)", 12, charset="utf8mb4", length=20), "北京"),
    "price": (Column("price", "decimal(20,2)", 3, length=20, scale=2), "120.50"),
    "big": (Column("big", "decimal(65,0)", 3, length=65), "9" * 65),
    "ratio": (Column("ratio", "float", 7), 1.1),
    "active": (Column("active", "tinyint(1)", -6), 1),
    "flags": (Column("flags", "bit(8)", -7, length=8), 5),
    "born": (Column("born", "date", 91), "2026-01-31"),
    "zero": (Column("zero", "date", 91), "0000-00-00"),
    "seen": (Column("seen", "datetime(3)", 93, length=3), "2026-01-31 12:30:00.500"),
    "midnight": (Column("midnight", "datetime", 93), "2026-01-31 00:00:00"),
    "stamp": (Column("stamp", "timestamp(6)", 93, length=6), "2026-01-31 12:30:00.000000"),
    "lasted": (Column("lasted", "time", 92), "-100:30:00"),
    "exact": (Column("exact", "time(2)", 92, length=2), "25:00:00.50"),
    "made": (Column("made", "year", 12), "2026"),
    "level": (Column("level", "enum('low','High')", 12, charset="utf8mb4", labels=("low", "High")), "High"),
    "tags": (Column("tags", "set('a','b','c')", 12, charset="utf8mb4", labels=("a", "b", "c")), "a,c"),
    "note": (Column("note", "text", 2005, charset="gbk"), "50%_off\nnow"),
    "raw": (Column("raw", "varbinary(9)", 2004, charset="binary"), b"ab"),
    "doc": (Column("doc", "json", 12), '{"a": 1}'),
    "place": (Column("place", "geometry", 2004), b"\0"),
    "odd name": (Column("odd name", "int", 4), 1),
    "and": (Column("and", "int", 4), 2),
    "nothing": (Column("nothing", "int", 4), None),
    "void": (Column("void", "varchar(9)", 12, charset="latin1"), None),
    "Größe": (Column("Größe", "int", 4), 3),
}
COLUMNS = [column for column, _ in TABLE.values()]
ROW = tuple(value for _, value in TABLE.values())


def ask(condition: str, **values: Any) -> bool | None:
    row = tuple(values.get(name, value) for name, (_, value) in TABLE.items())
    return bind(parse_condition(condition), COLUMNS)(row)


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ('city = "北京" and price > 100', True),
        ("city = '北京' AND price>100", True),
        ('city = "上海" and price > 100', False),
        ('city = "北京" and price > 120.50', False),
        # numbers
        ("price = 120.5", True),
        ("price == 120.500", True),
        ("price <> 120.49999999999999999999999", True),
        ("price >= 1.205e2", True),
        ("price in (1, 120.5)", True),
        ("price < -.5", False),
        (f"big = {'9' * 65}", True),
        (f"big < {'9' * 64}8", False),
        ("big > 1e64", True),
        ("id = 7.0", True),
        ("id = 7.000000000000000001", False),
        ("7 = id and +8 > id and 6 < id and 7 <= id and 7 >= id and 6 != id", True),
        ("id between 7 and 9", True),
        ("id between 8 and 9", False),
        ("id not between 8 and 9", True),
        ("id in (1, 2, 7)", True),
        ("id not in (1, 2, 7)", False),
        ("ratio = 1.1", True),
        ("ratio in (1, 1.1)", True),
        ("ratio > 1.09 and ratio < 1.11", True),
        ("active = true and active <> false", True),
        ("flags = 5", True),
        # times
        ('born = "2026-01-31"', True),
        ('born = "2026-1-31"', True),
        ('born = "2026-01-31 00:00:00"', True),
        ('born < "2026-01-31 00:00:01"', True),
        ('born = "2026-01-31 00:00:01"', False),
        ('born > "2026-01-30 23:59:59.999999"', True),
        ('zero = "0000-00-00"', True),
        ('zero < "0001-01-01"', True),
        ('born in ("2026-02-01", "2026-01-31T00:00")', True),
        ('seen = "2026-01-31 12:30:00.5"', True),
        ('seen = "2026-01-31 12:30:00.500000"', True),
        ('seen > "2026-01-31 12:30"', True),
        ('seen > "2026-01-31 12:30:00.49"', True),
        ('seen < "2026-01-31 12:30:00.51"', True),
        ('seen > "2026-01-31"', True),
        ('seen between "2026-01-31" and "2026-02-01"', True),
        ('midnight = "2026-01-31"', True),
        ('stamp = "2026-01-31 12:30:00"', True),
        ('lasted = "-100:30:00"', True),
        ('lasted < "-99:59:59"', True),
        ('lasted < "00:00"', True),
        ('exact = "25:00:00.5"', True),
        ('exact > "9:00:00"', True),
        ('exact > "25:00"', True),
        ("made = 2026", True),
        ('made > "2025"', True),
        ("made > 0", True),
        # texts
        ("city = '北京 '", False),
        ("level = 'High'", True),
        ("level = 'high'", False),
        ("level > 'Hi'", True),
        ("tags = 'a,c'", True),
        ("tags like '%c'", True),
        ("city like '北_'", True),
        ("city not like '北%'", False),
        (r"note like '50\%\_off%'", True),
        (r"note like '50\%\_off'", False),
        (r"note like '50\__off%'", False),
        (r"note like '5\%off%'", False),
        ("note like '5%off%'", True),
        (r"note like '50__off%'", True),
        (r"note like '50\%\%off%'", False),
        ("note like '%now'", True),
        ('note = "50%_off\\nnow"', True),
        ("city <> 'it''s' and city <> \"a\"\"b\" and city <> 'a\\'b'", True),
        # NULL: neither true nor false
        ("nothing = 1", None),
        ("nothing <> 1", None),
        ("not nothing = 1", None),
        ("nothing in (1, 2)", None),
        ("nothing not in (1, 2)", None),
        ("nothing between 1 and 2", None),
        ("nothing not between 1 and 2", None),
        ("void like '%'", None),
        ("void not like '%'", None),
        ("nothing is null", True),
        ("nothing is not null", False),
        ("id is null", False),
        ("id is not null", True),
        ("not id is null", True),
        ("nothing = 1 or id = 7", True),
        ("id = 7 or nothing = 1", True),
        ("nothing = 1 or id = 8", None),
        ("nothing = 1 and id = 7", None),
        ("nothing = 1 and id = 8", False),
        ("id = 8 and nothing = 1", False),
        ("not (nothing = 1 and id = 8)", True),
        ("not (nothing = 1 or id = 8)", None),
        ("nothing = 1 or nothing = 2 or id = 7", True),
        ("raw is not null and doc is not null and place is not null", True),
        # order of operators, brackets, names
        ("id = 7 or id = 8 and city = 'x'", True),
        ("(id = 7 or id = 8) and city = 'x'", False),
        ("not id = 8 and city = 'x'", False),
        ("not (id = 8 and city = 'x')", True),
        ("not not id = 7", True),
        ("not not not id = 7", False),
        ("ID=7 AnD `odd NAME` = 1 and `and` = 2 and größe = 3", True),
        ("\tid\n=\r\n7 ", True),
    ],
)
def test_a_condition_is_answered_as_sql_does(condition: str, answer: bool | None) -> None:
    assert ask(condition) is answer


def test_enum_and_set_compare_by_text_also_when_rows_have_their_numbers() -> None:
    assert ask("level = 'High'", level=2) is True
    assert ask("level = ''", level=0) is True
    assert ask("tags = 'a,c'", tags=5) is True


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("", "the end at character 1 should be a column"),
        ("id", "the end at character 3 should be an operator such as ="),
        ("id =", "the end at character 5 should be a number, a text in quotes, true or false"),
        ("id = 7 city", '\'city\' at character 8 should be "and", "or" or the end'),
        ("id = 7 and", "the end at character 11 should be a column"),
        ("id = 7)", '\')\' at character 7 should be "and", "or" or the end'),
        ("(id = 7", 'the end at character 8 should be "and", "or" or ")"'),
        ("id = city", "'city' at character 6 should be a number"),
        ("7 = 8", "'8' at character 5 should be a column"),
        ("id in ()", "')' at character 8 should be a number"),
        ("id in (1 2)", '\'2\' at character 10 should be "," or ")"'),
        ("id in 1", "'1' at character 7 should be \"(\""),
        ("id between 1 or 2", "'or' at character 14 should be \"and\""),
        ("id not = 1", '\'=\' at character 8 should be "in", "between" or "like"'),
        ("id is 1", '\'1\' at character 7 should be "null" or "not null"'),
        ("id is not 1", "'1' at character 11 should be \"null\""),
        ("city like 5", "'5' at character 11 should be a text in quotes"),
        ("and = 1", "'and' at character 1 should be a column (in backquotes"),
        ("id = null", "'null' at character 6: a comparison with NULL is never true; write is null"),
        ("id in (1, NULL)", "'NULL' at character 11: a comparison with NULL is never true"),
        ("id = -x", "'x' at character 7 should be a number"),
        ("id = 5x", "'x' at character 7 should not touch the number before it"),
        ("id = 1e999", "the number at character 6 has too many digits"),
        ("id = 1e-999999999999", "the number at character 6 has too many digits"),
        ("id = " + "1" * 101, "the number at character 6 has too many digits"),
        ("a && b", "'&' at character 3: write and"),
        ("a || b", "'|' at character 3: write or"),
        ("!a", "'!' at character 1: write not"),
        ("city = 'x", '"\'" at character 8: the text has no end'),
        ('city = "x', "'\"' at character 8: the text has no end"),
        ("`id = 1", "'`' at character 1: a column's name in backquotes has no end"),
        ("id = @x", "'@' at character 6: it has no meaning here"),
        ("id = 1; drop", "';' at character 7: it has no meaning here"),
        ("exec('x') = 1", "'(' at character 5 should be an operator"),
        ("(" * 21 + "id = 1" + ")" * 21, "'(' at character 21 is nested more than 20 deep"),
        ("id = 1 or " * 1000 + "id = 1", "should have at most 10,000 characters"),
    ],
)
def test_what_can_not_be_read_is_refused_with_its_place(condition: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_condition(condition)


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("id = '7'", "'7' at character 6, compared with id (bigint), should be a number, without quotes"),
        ("price in (1, 'x')", "'x' at character 14, compared with price (decimal), should be a number"),
        ("city = 7", "7 at character 8, compared with city (varchar), should be a text, in quotes"),
        ("city = true", "true at character 8, compared with city (varchar), should be a text"),
        ("born = 20260131", "20260131 at character 8, compared with born (date), should be a text in quotes"),
        ("born = '2026-02-29'", "'2026-02-29' at character 8, compared with born (date), is no date of the calendar"),
        ("born = '31.1.2026'", "should be a date such as"),
        ("seen = '2026-01-31T12:00:00Z'", "without a zone"),
        ("seen = '2026-01-31 24:00:00'", "is no time of a day"),
        ("seen = '2026-01-31 12:00:00.1234567'", "should be a date such as"),
        ("lasted = '12:60:00'", "is no TIME"),
        ("lasted = '839:00:00'", "is no TIME"),
        ("lasted = 'noon'", "should be a time such as"),
        ("made = 26", "should be a year of 4 digits"),
        ("made = true", "should be a year of 4 digits"),
        ("ratio = 1e400", "is too large for a DOUBLE"),
        ("raw = 'ab'", "raw (varbinary) can't be compared with 'ab', only be asked for null"),
        ("doc like '%a%'", "doc (json) can't be compared"),
        ("place in (1)", "place (geometry) can't be compared"),
        ("id like '7%'", "id (bigint) is a number, and like is for texts"),
        ("born like '2026%'", "born (date) is a date, and like is for texts"),
    ],
)
def test_a_literal_that_does_not_fit_its_column_is_refused(condition: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        bind(parse_condition(condition), COLUMNS)


def test_a_text_column_of_bytes_can_not_be_compared() -> None:
    with pytest.raises(ValueError, match="x \\(char\\) can't be compared"):
        bind(parse_condition("x = 'a'"), [Column("x", "char(3)", 1, charset="binary")])


def test_an_unknown_column_is_refused_with_near_ones() -> None:
    with pytest.raises(ValueError, match="the table has no column prize; did you mean price"):
        bind(parse_condition("id = 1 and prize > 1"), COLUMNS)
    with pytest.raises(ValueError, match="the table has no column xyzzyx; it has id, city, price"):
        bind(parse_condition("xyzzyx is null"), COLUMNS)


@pytest.mark.parametrize("condition", ["city = 'x' and id = 7", "id = 7 or city = 'x'", "id = 7 or city is null"])
def test_a_column_that_the_image_lacks_is_an_error_whatever_the_others_hold(condition: str) -> None:
    for id_ in (7, 8, None):
        with pytest.raises(ColumnAbsent, match="no column city") as raised:
            ask(condition, city=ABSENT, id=id_)
        assert raised.value.name == "city"
        assert not raised.value.retriable
    assert ask("id = 7", city=ABSENT) is True


def test_hostile_names_and_texts_stay_values() -> None:
    name = '"]);raise SystemExit#\n'
    match = bind(parse_condition(f"`{name}` = '\"]);raise SystemExit#'"), [Column(name, "text", 12, charset="utf8mb4")])
    assert match(('"]);raise SystemExit#',)) is True


def test_the_deepest_and_the_longest_conditions_are_bound() -> None:
    deep = "id = 7"
    for _ in range(20):
        deep = f"id = 8 or id = 7 and not ({deep} or id = 9 and city = 'x')"
    assert ask(deep) in (True, False)
    assert ask(" and ".join(["(id = 7)"] * 100)) is True
    assert ask(" or ".join(["id=8"] * 1100 + ["id=7"])) is True
    assert ask(" and ".join(["id=7"] * 900 + ["id=8"])) is False
    assert ask(f"id in ({','.join(map(str, range(1900)))})") is True


_TOKENS = (
    "id", "city", "price", "born", "and", "or", "not", "in", "between", "like", "is", "null", "true", "(", ")", ",",
    "=", "<>", "<", ">=", "7", "-1.5", "1e3", "'x'", '"2026-01-31"', "`id`", "\\", "%", "'",
)  # fmt: skip


@settings(max_examples=examples(500), deadline=1000)
@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from(_TOKENS),
        max_size=25,
    ).map(" ".join)
)
def test_any_text_is_answered_or_refused_with_a_sentence(text: str) -> None:
    try:
        match = bind(parse_condition(text), COLUMNS)
    except ValueError as error:
        answer: object = str(error) and type(error) is ValueError
    else:
        answer = match(ROW) in (True, False, None)
    assert answer


def test_a_text_that_never_ends_is_refused_at_once() -> None:
    begun = time.process_time()
    for text in ("'" * 9999, "'\\" * 4999, "`" * 9999, "(" * 9999, "not " * 2400, "9" * 9999, "a=" + "-" * 9000):
        with pytest.raises(ValueError, match="character"):
            parse_condition(text)
    assert time.process_time() - begun < 1


_NUMBERS = st.integers(-3, 3)
_WORDS = st.text("ab%_", max_size=3)
_COMPARISONS = st.one_of(
    st.tuples(st.sampled_from("xy"), st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="]), _NUMBERS).map(
        lambda t: f"{t[0]} {t[1]} {t[2]}"
    ),
    st.tuples(st.sampled_from(["in", "not in"]), st.lists(_NUMBERS, min_size=1, max_size=3)).map(
        lambda t: f"x {t[0]} ({', '.join(map(str, t[1]))})"
    ),
    st.tuples(st.sampled_from(["between", "not between"]), _NUMBERS, _NUMBERS).map(
        lambda t: f"y {t[0]} {t[1]} and {t[2]}"
    ),
    st.tuples(st.sampled_from(["=", "<>", "<", ">="]), _WORDS).map(lambda t: f"s {t[0]} '{t[1]}'"),
    st.tuples(st.sampled_from(["like", "not like"]), _WORDS).map(lambda t: f"s {t[0]} '{t[1]}'"),
    st.tuples(st.sampled_from("xys"), st.sampled_from(["is null", "is not null"])).map(" ".join),
)
_CONDITIONS = st.recursive(
    _COMPARISONS,
    lambda inner: st.one_of(
        inner.map(lambda c: f"not ({c})"),
        inner.map(lambda c: f"not {c}"),
        st.lists(inner, min_size=2, max_size=4).map(lambda cs: "(" + " and ".join(cs) + ")"),
        st.lists(inner, min_size=2, max_size=4).map(lambda cs: "(" + " or ".join(cs) + ")"),
        st.lists(inner, min_size=2, max_size=3).map(" or ".join),
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def sqlite() -> Any:
    database = sqlite3.connect(":memory:")
    database.execute("pragma case_sensitive_like = on")
    yield database
    database.close()


@settings(max_examples=examples(1500), deadline=None)
@given(
    condition=_CONDITIONS,
    row=st.tuples(st.none() | _NUMBERS, st.none() | _NUMBERS, st.none() | st.text("ab%_\n", max_size=4)),
)
def test_random_conditions_are_answered_as_by_sqlite(
    sqlite: sqlite3.Connection, condition: str, row: tuple[int | None, int | None, str | None]
) -> None:
    columns = [Column("x", "int", 4), Column("y", "decimal(3,1)", 3, length=3, scale=1), Column("s", "text", 12)]
    x, y, s = row
    ((truth,),) = sqlite.execute(f"select ({condition}) from (select ? as x, ? as y, ? as s)", row)
    ours = bind(parse_condition(condition), columns)((x, None if y is None else str(Decimal(y) / 1) + ".0", s))
    assert ours is (None if truth is None else bool(truth))


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("a = 1 and not b in ('x', \"y'\")", "((`a` = (1)) AND (NOT (`b` IN (_utf8mb4 0x78, _utf8mb4 0x7927))))"),
        ("1.50 <= `a``b` or c is not null", "((`a``b` >= (1.50)) OR (NOT (`c` IS NULL)))"),
        ("a between -5 and 1e3", "((`a` >= (-5)) AND (`a` <= (1000)))"),
        ("a like '' or b != true", "((`a` LIKE '') OR (`b` <> TRUE))"),
        ("sleep = 'sleep(5)'", "(`sleep` = _utf8mb4 0x736c656570283529)"),
    ],
)
def test_a_condition_becomes_sql_that_has_names_and_literals_alone(text: str, sql: str) -> None:
    assert to_sql(parse_condition(text)) == sql


def test_what_a_condition_asks_for_is_known_by_name() -> None:
    assert columns_of(parse_condition("not (A = 1 or b is null) and `c D` in (1, 2)")) == {"a", "b", "c d"}
