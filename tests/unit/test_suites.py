"""The long test of the servers' own suites: what it reads out of a `.test` file, and what its replay notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.suites import reader
from tests.suites.replay import Replay, Row, Selected

T = ("test", "t")


def read(folder: Path, text: str) -> list[str]:
    (folder / "one.test").write_text(text)
    return list(reader.statements(folder / "one.test", folder))


def test_sql_is_split_at_the_delimiter_and_commands_are_left_out(tmp_path: Path) -> None:
    text = """
--source include/have_innodb.inc
--error ER_DUP_ENTRY
# a comment; with a delimiter
INSERT INTO t VALUES ('a;b', "c\\";"), /* ; */
  (`d;`);
--disable_query_log
let $x= 1;
while ($x)
{
  UPDATE t SET a = 2; DELETE FROM t;
  dec $x;
}
delimiter |;
CREATE PROCEDURE p() BEGIN SELECT 1; END|
delimiter ;|
--write_file $MYSQLTEST_VARDIR/x
DROP TABLE in_a_file;
EOF
connect (other,localhost,root,,);
echo DROP TABLE printed;
SELECT * FROM t;
COMMIT;
"""
    assert read(tmp_path, text) == [
        'INSERT INTO t VALUES (\'a;b\', "c\\";"), /* ; */\n  (`d;`)',
        "UPDATE t SET a = 2",
        "DELETE FROM t",
        "CREATE PROCEDURE p() BEGIN SELECT 1; END",
        "COMMIT",
    ]


def test_variables_with_known_values_are_filled_in_and_files_of_the_suite_are_read(tmp_path: Path) -> None:
    (tmp_path / "more.inc").write_text("--eval CREATE TABLE t (a INT) ENGINE=$engine\nINSERT INTO t VALUES (1);\n")
    text = "let $engine= InnoDB;\nlet $found= `SELECT 1`;\neval INSERT INTO t VALUES ($found);\n--source more.inc\n"
    assert read(tmp_path, text) == ["CREATE TABLE t (a INT) ENGINE=InnoDB", "INSERT INTO t VALUES (1)"]


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SET SESSION sql_mode = ''", True),
        ("SET NAMES sjis", True),
        ("SELECT f(1)", True),
        ("SELECT a FROM t INTO @a", True),
        ("START TRANSACTION", True),
        ("SELECT a FROM t", False),
        ("SET GLOBAL max_connections = 1", False),
        ("SET @@global.max_connections = 1", False),
        ("SET sql_log_bin = 0", False),
        ("SET SESSION binlog_format = STATEMENT", False),
        ("CREATE USER u", False),
        ("LOAD DATA INFILE 'x' INTO TABLE t", False),
        ("SELECT 1 INTO OUTFILE 'x'", False),
        ("UPDATE mysql.user SET a = 1", False),
        ("START SLAVE", False),
        ("SHUTDOWN", False),
    ],
)
def test_statements_about_more_than_their_session_are_left_out(sql: str, wanted: bool) -> None:
    assert reader.wanted(sql) is wanted


def message(kind: str, *rows: Row, old: list[Row] | None = None, key: list[str] | None = None) -> dict[str, Any]:
    types = {"id": "int", "v": "varchar(9)", "f": "float"}
    return {
        "database": "test", "table": "t", "type": kind, "data": [dict(row) for row in rows], "old": old, "sql": "",
        "pkNames": key, "mysqlType": types, "isDdl": False,
    }  # fmt: skip


def statement(kind: str, sql: str) -> dict[str, Any]:
    return {"database": "test", "table": "t", "type": kind, "data": None, "sql": sql, "isDdl": True}


def row(number: str, text: str | None, f: str | None = None) -> Row:
    return {"id": number, "v": text, "f": f}


@pytest.mark.parametrize("key", [["id"], None])
def test_messages_make_the_table_with_a_key_and_without(key: list[str] | None) -> None:
    replay = Replay()
    replay.message(statement("CREATE", "CREATE TABLE t (id INT)"))
    replay.message(message("INSERT", row("1", "a"), row("2", "b"), row("2", "b"), key=key))
    replay.message(message("UPDATE", row("3", "a"), old=[{"id": "1"}], key=key))
    replay.message(message("DELETE", row("2", "b"), key=key))
    replay.compare({T: Selected([row("2", "b"), row("3", "a")])})
    assert replay.differences == []
    assert (replay.rows, replay.rows_compared, replay.cells_compared) == (5, 2, 6)


@pytest.mark.parametrize(
    "wrong",
    [
        message("INSERT", row("1", "a"), row("1", "a")),
        message("INSERT", row("1", "b")),
        message("INSERT", row("1", None)),
        message("INSERT"),
        message("INSERT", {"id": "1", "f": None}),
        message("DELETE", row("1", "a")),
    ],
)
def test_a_row_too_many_one_too_few_another_value_and_a_missing_column_are_differences(wrong: dict[str, Any]) -> None:
    replay = Replay()
    replay.message(statement("CREATE", "CREATE TABLE t (id INT)"))
    replay.message(wrong)
    replay.compare({T: Selected([row("1", "a")])})
    assert replay.differences


def test_rows_of_a_table_that_is_gone_without_a_statement_are_a_difference() -> None:
    replay = Replay()
    replay.compare({T: Selected([row("1", "a")])})
    replay.compare({})
    assert len(replay.differences) == 1


def test_after_ddl_rows_are_taken_from_select() -> None:
    replay = Replay()
    replay.compare({T: Selected([row("1", "a")])})
    replay.message(statement("ALTER", "ALTER TABLE t MODIFY v INT"))
    replay.compare({T: Selected([row("1", "0")])})
    assert replay.differences == []
    assert replay.tables_compared == 0
    replay.message(message("UPDATE", row("1", "1"), old=[{"v": "0"}], key=["id"]))
    replay.compare({T: Selected([row("1", "1")])})
    assert replay.differences == []
    assert replay.tables_compared == 1


def test_columns_that_a_minimal_image_lacks_are_not_compared() -> None:
    replay = Replay(whole=False)
    replay.compare({T: Selected([row("1", "a", "1.5"), row("2", "b")])})
    replay.message(message("UPDATE", {"id": "1", "v": "c"}, old=[{}], key=["id"]))
    replay.message(message("DELETE", {"id": "2"}, key=["id"]))
    replay.message(message("INSERT", {"id": "3"}, key=["id"]))
    replay.compare({T: Selected([row("1", "c", "1.5"), row("3", "by default")])})
    assert replay.differences == []
    replay.message(message("UPDATE", {"id": "1", "v": "d"}, old=[{}], key=["id"]))
    replay.compare({T: Selected([row("1", "c", "1.5"), row("3", "by default")])})
    assert len(replay.differences) == 1
