"""The tokenizer of SQL: names, strings, comments, and text that has no end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.mysql.sql.dialect import Dialect, dialect_of
from headrace.mysql.sql.tokens import NotParsed, tokenize

MYSQL = Dialect(mariadb=False, version=90704)
MARIADB = Dialect(mariadb=True, version=101106)
ANSI, NO_ESCAPES = 1 << 2, 1 << 20


def values(sql: str, dialect: Dialect = MYSQL) -> list[str]:
    return [token.value for token in tokenize(sql, dialect)]


def kinds(sql: str, dialect: Dialect = MYSQL) -> list[str]:
    return [token.kind for token in tokenize(sql, dialect)]


def test_names_in_backticks_keep_what_is_in_them() -> None:
    assert values("`a``b`.`c d`") == ["a`b", ".", "c d"]


def test_double_quotes_are_names_only_in_ansi_mode() -> None:
    assert kinds('"a"') == ["string"]
    assert kinds('"a"', Dialect(False, 90704, ANSI)) == ["name"]
    assert values('"a""b"', Dialect(False, 90704, ANSI)) == ['a"b']


def test_escapes_in_strings() -> None:
    assert values(r"'it\'s' 'it''s' '\\' '\n\0\Z\%'") == ["it's", "it's", "\\", "\n\0\x1a\\%"]
    assert values(r"'\\''x'") == ["\\'x"]


def test_a_backslash_is_literal_when_the_session_says_so() -> None:
    assert values(r"'a\' 'b'", Dialect(False, 90704, NO_ESCAPES)) == ["a\\", "b"]


@pytest.mark.parametrize("comment", ["/* x */", "-- x\n", "# x\n", "/**/", "--\n", "/* ' */"])
def test_comments_are_left_out(comment: str) -> None:
    assert values(f"a{comment}b") == ["a", "b"]


def test_two_dashes_without_space_are_no_comment() -> None:
    assert values("a--1") == ["a", "-", "-", "1"]


@pytest.mark.parametrize(
    ("comment", "mysql", "mariadb"),
    [
        ("/*! x */", True, True),
        ("/*!50000 x */", True, True),
        ("/*!80016 x */", True, False),
        ("/*!50701 x */", True, False),
        ("/*!99999 x */", False, False),
        ("/*!100100 x */", False, True),
        ("/*!110000 x */", False, False),
        ("/*M! x */", False, True),
        ("/*M!100300 x */", False, True),
        ("/*M!50701 x */", False, True),
        ("/*M!110000 x */", False, False),
    ],
)
def test_executable_comments_run_on_the_servers_that_they_are_for(comment: str, mysql: bool, mariadb: bool) -> None:
    assert values(comment, MYSQL) == (["x"] if mysql else [])
    assert values(comment, MARIADB) == (["x"] if mariadb else [])


def test_a_comment_within_a_comment_that_does_not_run_is_counted() -> None:
    assert values("/*!99999 a /* b */ c */ d") == ["d"]


def test_names_begin_with_digits_dollars_and_letters_of_any_script() -> None:
    assert kinds("1a $b 表 _c 1e5 1e5x 0x1F b'01' x'4142'") == [
        *("word",) * 4, "number", "word", "bits", "bits", "bits",
    ]  # fmt: skip
    assert values("shop.1") == ["shop", ".", "1"]


def test_introducers_belong_to_their_string() -> None:
    assert values("_utf8mb4'é' N'x' _latin1 'abc' n'y'") == ["é", "x", "abc", "y"]
    assert kinds("_latin1'é'") == ["bits"]
    assert values("_bx int") == ["_bx", "int"]


def test_variables_and_accounts() -> None:
    assert kinds("root@`%` @x @@global.y") == ["word", "variable", "variable", "variable"]


def test_a_last_semicolon_is_left_out() -> None:
    assert values("a ;") == ["a"]


@pytest.mark.parametrize("sql", ["'x", "`x", "/* x", "/*! x", '"x', r"'x\'"])
def test_text_without_an_end_is_not_understood(sql: str) -> None:
    with pytest.raises(NotParsed):
        tokenize(sql, MYSQL)


@given(st.text(alphabet="'\"`\\/*!-#;ab1 \n.@xN_(5", max_size=200), st.sampled_from([0, ANSI, NO_ESCAPES]))
def test_any_text_is_cut_or_refused(sql: str, mode: int) -> None:
    for dialect in (Dialect(False, 90704, mode), Dialect(True, 101106, mode)):
        try:
            tokens = tokenize(sql, dialect)
        except NotParsed:
            continue
        assert len(tokens) <= len(sql)


def test_text_that_goes_back_and_forth_takes_no_more_time_when_it_is_long() -> None:
    for piece in ("''", "``", "\\'", "/*", "'\\", '"x'):
        try:
            tokenize("'" + piece * 100_000, MYSQL)
        except NotParsed:
            continue


def test_versions_are_read() -> None:
    assert dialect_of("8.0.36-log", mariadb=False).version == 80036
    assert dialect_of("10.11.6-MariaDB-0+deb12u1", mariadb=True).version == 101106
    assert dialect_of("5.5.5-10.4.32-MariaDB", mariadb=True).version == 100432
    assert dialect_of("strange", mariadb=False).version == 0
