"""What statements are, which tables they name, and that anything unknown in one is said to be so."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model import DdlKind
from headrace.mysql.events.query_event import QueryEvent
from headrace.mysql.schema.ddl.actions import AlterTable, CreateTable, DropIndex, StatementInfo
from headrace.mysql.schema.ddl.classify import classify
from tests.ddl_corpus import CASES
from tests.examples import examples


def parsed(sql: str | bytes, *, mariadb: bool = False, schema: str = "shop", **more: int) -> StatementInfo:
    text = sql.encode() if isinstance(sql, str) else sql
    version = "10.11.6-MariaDB" if mariadb else "9.7.4"
    return classify(QueryEvent(schema, text, **more), mariadb=mariadb, version=version)  # type: ignore[arg-type]


def test_variables_for_one_statement_of_mariadb_do_not_hide_it() -> None:
    info = parsed("SET STATEMENT max_statement_time=5, x='FOR' FOR ALTER TABLE t RENAME COLUMN a TO b", mariadb=True)
    assert (info.category, info.tables, info.problem) == ("ddl", (("shop", "t"),), "")
    assert isinstance(info.action, AlterTable)
    dml = parsed("SET STATEMENT sql_mode='' FOR UPDATE t SET a = 1", mariadb=True)
    assert (dml.category, dml.tables) == ("dml", (("shop", "t"),))
    assert parsed("SET STATEMENT x=1 FO", mariadb=True).problem == "SET STATEMENT without FOR"


@pytest.mark.parametrize(
    ("sql", "kind", "category", "tables"),
    [
        ("CREATE TABLE t (id int)", DdlKind.CREATE, "ddl", (("shop", "t"),)),
        ("create table if not exists `x y`.t like z", DdlKind.CREATE, "ddl", (("x y", "t"), ("shop", "z"))),
        ("ALTER TABLE t ADD a int", DdlKind.ALTER, "ddl", (("shop", "t"),)),
        ("ALTER TABLE t RENAME TO b.u", DdlKind.RENAME, "ddl", (("shop", "t"), ("b", "u"))),
        ("ALTER TABLE t ADD INDEX (a)", DdlKind.CREATE_INDEX, "ddl", (("shop", "t"),)),
        ("ALTER TABLE t DROP INDEX a", DdlKind.DROP_INDEX, "ddl", (("shop", "t"),)),
        ("DROP TABLE a, b.c", DdlKind.ERASE, "ddl", (("shop", "a"), ("b", "c"))),
        ("TRUNCATE t", DdlKind.TRUNCATE, "ddl", (("shop", "t"),)),
        ("RENAME TABLE a TO b, b TO c", DdlKind.RENAME, "ddl", tuple(("shop", n) for n in "abbc")),
        ("CREATE UNIQUE INDEX i ON t (a)", DdlKind.CREATE_INDEX, "ddl", (("shop", "t"),)),
        ("DROP INDEX i ON x.t", DdlKind.DROP_INDEX, "ddl", (("x", "t"),)),
        ("CREATE DATABASE x", DdlKind.QUERY, "ddl", ()),
        ("CREATE DEFINER=`root`@`%` TRIGGER g AFTER INSERT ON t FOR EACH ROW DROP TABLE t", DdlKind.QUERY, "ddl", ()),
        ("CREATE OR REPLACE ALGORITHM=MERGE VIEW v AS SELECT 1", DdlKind.QUERY, "ddl", (("shop", "v"),)),
        ("CREATE PROCEDURE p() BEGIN END", DdlKind.QUERY, "ddl", ()),
        ("GRANT ALL ON *.* TO x", DdlKind.QUERY, "dcl", ()),
        ("CREATE USER x", DdlKind.QUERY, "dcl", ()),
        ("SET PASSWORD FOR x = 'y'", DdlKind.QUERY, "dcl", ()),
        ("FLUSH TABLES", DdlKind.QUERY, "other", ()),
        ("ANALYZE TABLE t", DdlKind.QUERY, "other", ()),
        ("BEGIN", DdlKind.QUERY, "other", ()),
        ("XA START 'x'", DdlKind.QUERY, "other", ()),
        ("/* nothing */", DdlKind.QUERY, "other", ()),
        ("INSERT INTO a.b VALUES (1)", DdlKind.QUERY, "dml", (("a", "b"),)),
        ("REPLACE LOW_PRIORITY t SET a = 1", DdlKind.QUERY, "dml", (("shop", "t"),)),
        ("UPDATE a x JOIN b.c ON x.i = c.i SET x.j = 1", DdlKind.QUERY, "dml", (("shop", "a"), ("b", "c"))),
        ("UPDATE (SELECT 1) s, t SET a = 1", DdlKind.QUERY, "dml", None),
        ("DELETE FROM t WHERE a = 1", DdlKind.QUERY, "dml", (("shop", "t"),)),
        ("DELETE a FROM a JOIN b USING (i)", DdlKind.QUERY, "dml", (("shop", "a"), ("shop", "b"))),
        ("LOAD DATA LOCAL INFILE 'x' IGNORE INTO TABLE s.t FIELDS", DdlKind.QUERY, "dml", (("s", "t"),)),
        ("WITH x AS (SELECT 1) DELETE FROM t", DdlKind.QUERY, "dml", None),
    ],
)
def test_statements_are_distinguished(
    sql: str, kind: DdlKind, category: str, tables: tuple[tuple[str, str], ...] | None
) -> None:
    info = parsed(sql)
    assert (info.kind, info.category, info.tables, info.problem) == (kind, category, tables, "")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (id frob)",
        "CREATE TABLE t (id int FROB)",
        "CREATE TABLE t (id int) FROB",
        "CREATE TABLE t (id int) SELECT 1",
        "CREATE TABLE t (a varchar)",
        "CREATE TABLE t (a varchar(5) charset klingon)",
        "CREATE TABLE t (a int",
        "ALTER TABLE t ADD a int, FROB",
        "ALTER TABLE t ADD a int b int",
        "ALTER TABLE t MODIFY a int AFTER",
        "ALTER TABLE t ADD PRIMARY KEY ((a + 1))",
        "ALTER TABLE t ADD a int DEFAULT f(x)",
    ],
)
def test_what_is_not_known_within_a_statement_makes_its_table_unknown(sql: str) -> None:
    info = parsed(sql)
    assert info.problem
    assert info.action is None
    assert info.tables == (("shop", "t"),)


@pytest.mark.parametrize(
    "sql", ["CREATE STRANGE THING", "ALTER TABLE t FROB, RENAME TO u", "DROP TABLE", "FROB t", "RENAME TABLE a", "'"]
)
def test_a_statement_that_may_be_about_any_table_says_so(sql: str) -> None:
    info = parsed(sql)
    assert (info.category, info.tables) == ("ddl", None)
    assert info.problem


def test_temporary_tables_change_nothing() -> None:
    info = parsed("CREATE TEMPORARY TABLE t (a frob)")
    assert (info.temporary, info.action, info.problem) == (True, None, "")
    assert parsed("DROP TEMPORARY TABLE IF EXISTS t").temporary


def test_the_sessions_character_set_decides_what_the_bytes_say() -> None:
    info = parsed("CREATE TABLE `许功盖` (`列` int)".encode("gbk"), client_collation=28)
    assert isinstance(info.action, CreateTable)
    assert (info.action.name, info.action.columns[0].name) == (("shop", "许功盖"), "列")


def test_a_name_that_is_no_text_is_not_understood() -> None:
    assert parsed(b"CREATE TABLE t (`a\xff` int)", client_collation=45).problem
    assert parsed(b"CREATE TABLE t (a int comment '\xff')", client_collation=45).problem == ""


def test_the_schemas_default_collation_of_the_server_is_used() -> None:
    action = parsed("CREATE DATABASE x", server_collation=8).action
    assert getattr(action, "charset", None) == "latin1"


def test_oracle_mode_gives_types_other_meanings_and_maxdb_mode_some_that_are_not_known() -> None:
    for mariadb, kind in ((True, "datetime"), (False, "date")):
        action = parsed("CREATE TABLE t (a date)", mariadb=mariadb, sql_mode=512).action
        assert isinstance(action, CreateTable)
        assert action.columns[0].type.kind == kind
    assert parsed("CREATE TABLE t (a date)", mariadb=True, sql_mode=4096).problem
    assert not parsed("CREATE TABLE t (a date)", mariadb=False, sql_mode=4096).problem


def test_the_primary_key_can_be_dropped_as_an_index() -> None:
    action = parsed("DROP INDEX `PRIMARY` ON t").action
    assert isinstance(action, AlterTable)
    assert action.specs == (DropIndex("PRIMARY"),)


SEEDS = [
    (sql.replace("{db}", "shop").replace("{other}", "other"), "mariadb" in case.servers)
    for case in CASES
    for sql in case.statements
]


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, len(SEEDS) - 1), st.randoms(use_true_random=False), st.binary(max_size=4))
def test_broken_statements_never_raise_and_never_hang(index: int, rng: random.Random, noise: bytes) -> None:
    sql, mariadb = SEEDS[index]
    text = bytearray(sql.encode())
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            del text[at : at + rng.randint(1, 9)]
        elif kind == 1:
            text[at:at] = noise
        elif kind == 2:
            text[at:at] = rng.choice((b"(", b")", b",", b"'", b"`", b"/*", b" NOT ", b" KEY ", b"\0"))
        else:
            end = rng.randrange(len(text) + 1)
            text[at:at] = text[min(at, end) : max(at, end)]
    info = parsed(bytes(text), mariadb=mariadb)
    assert info.action is None or not info.problem
    assert info.category in ("ddl", "dcl", "dml", "other")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_statement_of_some_kind(text: bytes) -> None:
    parsed(text)
    parsed(b"CREATE TABLE t (" + text)
    parsed(b"ALTER TABLE t " + text)
