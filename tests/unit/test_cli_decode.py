"""`headrace decode`: what is wrong with its arguments and files, said in a sentence; no server is needed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.made_binlog import NAME, Binlog


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Exit status and standard error."""
    try:
        status = main(["decode", *map(str, arguments)])
    except SystemExit as error:
        status = int(str(error.code))
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give one of binlog files, --archive and --host"),
        (("a.000001", "--host", "h", "--user", "u"), "give one of binlog files, --archive and --host"),
        (("--host", "h"), "--host needs --user"),
        (("a.000001", "--follow"), "--follow needs --host"),
        (("x/a.000001", "y/a.000001"), "two of the files have the same name"),
        (("a.000001", "--from", "soon"), "--from soon: should be"),
        (("a.000001", "--from", "latest"), "--from latest: should be an offset, file:offset, or a time with its zone"),
        (("a.000001", "--to", "2026-01-01T00:00:00"), "--to 2026-01-01T00:00:00: the time should have a zone"),
        (("a.000001", "--table", "("), "--table: regex 1 is invalid"),
        (("a.000001", "--skip-event", "here"), "--skip-event: should be a file and the offset"),
        (("a.000001", "--format", "canal-protobuf"), "canal-protobuf is binary, and this command prints lines of text"),
        (("a.000001", "--format", "avro"), "choose from 'canal', 'debezium', 'maxwell'"),
        (("--host", "h", "--user", "u", "--positional"), "--schema and --positional are for files"),
        (("--host", "h", "--user", "u", "--port", "0"), "--port: "),
        (("--host", "h", "--user", "u", "--password-env", "NO_SUCH"), "the environment variable NO_SUCH is not set"),
        (("--host", "h", "--user", "u", "--from", "soon"), "--from soon: should be"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str) -> None:
    status, error = said(capsys, *arguments)
    assert status == 2
    assert sentence in error


def test_files_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, empty = tmp_path / "notes.txt", tmp_path / "empty.000001"
    bare, headless = tmp_path / "bare.000001", tmp_path / "headless.000001"
    text.write_text("hello")
    empty.write_bytes(b"")
    event = struct.pack("<IBIIIH", 0, 3, 1, 19 + 80, 103, 0) + bytes(80)
    headless.write_bytes(b"\xfebin" + event)
    bare.write_bytes(b"\xfebin")
    secret = tmp_path / "secret.000001"
    secret.write_bytes(b"\xfdbin" + bytes(600))
    for path, sentence in (
        (secret, "is encrypted"),
        (tmp_path / "gone.000001", "can't be read: No such file"),
        (tmp_path, "can't be read: Is a directory"),
        (text, "is no binlog"),
        (empty, "is no binlog"),
        (bare, "does not begin with an event that describes its format"),
        (headless, "does not begin with an event that describes its format"),
    ):
        status, error = said(capsys, path)
        assert status == 1, path
        assert sentence in error
        assert str(path) in error


def written(folder: Path, name: str, log: Binlog) -> Path:
    """The events of a stream as a file."""
    at, events = 0, b""
    while at < len(log.packets):
        size = int.from_bytes(log.packets[at : at + 3], "little")
        event = bytes(log.packets[at + 5 : at + 4 + size])
        events += event if event[4] != 4 else b""  # the ROTATE before a file stands in none
        at += 4 + size
    path = folder / name
    path.write_bytes(b"\xfebin" + events)
    return path


def test_an_event_is_passed_over_in_a_file_of_any_name_and_rows_alone_are_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What is told of it goes to standard error."""
    log = Binlog(checksums=False).begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table(collation=28)
    bad = log.at
    log.event(30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\xff" + b"\xfc\1\0\0\0\1\xa1")
    log.insert((2, "b"))
    path = written(tmp_path, "saved.binlog", log)
    status, error = said(capsys, path)
    assert status == 1
    assert f"at saved.binlog:{bad}" in error
    status = main(["decode", str(path), "--skip-event", f"saved.binlog:{bad}"])
    printed = capsys.readouterr()
    assert status == 0
    assert [json.loads(line)["data"] for line in printed.out.splitlines()] == [[{"id": "2", NAME: "b"}]]


def test_a_binlog_of_mysql_5_5_does_not_speak_of_checksums(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = Binlog(checksums=False).begin_file(version=b"5.5.62-log")
    log.query("BEGIN")
    log.table()
    log.insert((1, "a"))
    log.event(16, struct.pack("<Q", 1))
    assert main(["decode", str(written(tmp_path, "mysql-bin.000001", log))]) == 0
    assert [json.loads(line)["data"] for line in capsys.readouterr().out.splitlines()] == [[{"id": "1", NAME: "a"}]]


def nameless(folder: Path) -> Path:
    """A file with a row of shop.orders: a BIGINT, a VARCHAR(120) of an unknown character set, an ENUM and a SET."""
    log = Binlog(checksums=False).begin_file(version=b"5.5.62-log")
    log.query("BEGIN")
    body = struct.pack("<IHH", 7, 0, 1) + b"\4shop\0\6orders\0\4" + bytes((8, 15, 254, 254))
    log.event(19, body + b"\6" + struct.pack("<H", 120) + b"\xf7\1\xf8\1" + b"\x0e")
    row = b"\xf0" + struct.pack("<q", -1) + b"\3a\xff\\" + b"\2\3"
    log.event(30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\4\xff" + row)
    log.event(16, struct.pack("<Q", 1))
    return written(folder, "mysql-bin.000001", log)


def test_columns_without_names_come_by_position_and_members_by_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["decode", "--positional", str(nameless(tmp_path))]) == 0
    (message,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert message["data"] == [{"@1": "-1", "@2": "a\\xff\\", "@3": "2", "@4": "3"}]
    assert message["pkNames"] is None
    assert main(["decode", "--positional", "--format", "debezium", str(nameless(tmp_path))]) == 0
    (event,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert event["after"] == {"@1": -1, "@2": "a\\xff\\", "@3": 2, "@4": 3}


SCRIPT = """\ufeff-- MySQL dump
/*!40101 SET NAMES utf8mb4 */;
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `shop` /*!40100 DEFAULT CHARACTER SET latin1 */;
USE `shop`;
DROP TABLE IF EXISTS `orders`;
CREATE TABLE `orders` (
  id bigint unsigned NOT NULL COMMENT 'a ; in a text',
  `na;me` varchar(120), kind enum('a','b'), flags set('x','y'), PRIMARY KEY (id)
) ENGINE=InnoDB;
INSERT INTO orders VALUES (1, 'CREATE TABLE no (');
DELIMITER ;;
CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW BEGIN CREATE TABLE nothing; END;;
DELIMITER ; -- back
CREATE VIEW v AS SELECT 1"""


def test_a_script_says_what_tables_are_before_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "shop.sql"
    script.write_text(SCRIPT)
    assert main(["decode", "--schema", str(script), str(nameless(tmp_path))]) == 0
    (message,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert message["data"] == [{"id": "18446744073709551615", "na;me": "a\xff\\", "kind": "b", "flags": "x,y"}]
    assert message["pkNames"] == ["id"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("USE shop;\n\nCREATE TABLE orders (id BIGINT, name", "line 3: the statement is not understood"),
        ("CREATE TABLE orders (id BIGINT)", "line 1: orders has no schema -> put `USE schema;` before the statement"),
        ("USE shop;\nCREATE TABLE orders LIKE others", "line 2: shop.orders is not understood"),
        ("USE shop;\nCREATE TABLE orders (name TEXT)", "line 2: shop.orders is not understood"),
        ("USE shop;\nCREATE TABLE\norders (name 'TEXT)", "divided into statements after line 3: a string has no end"),
        ("\nUSE shop\nCREATE TABLE orders (id BIGINT);", "line 2: the statement is not understood -> write it as `USE"),
        (b"USE shop;\n\xff", "is not UTF-8: byte 10 is 0xff"),
        (b" " * (16 << 20) + b";", "is larger than 16 MiB -> dump the tables without rows (--no-data)"),
        (None, "can't be read: No such file"),
    ],
)
def test_a_script_that_is_not_understood(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str | bytes | None, sentence: str
) -> None:
    script = tmp_path / "shop.sql"
    if text is not None:
        script.write_bytes(text.encode() if isinstance(text, str) else text)
    status, error = said(capsys, "--schema", script, nameless(tmp_path))
    assert status == 1
    assert sentence in error
    assert str(script) in error


def test_a_script_that_does_not_fit_the_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "shop.sql"
    script.write_text("USE shop; CREATE TABLE orders (id BIGINT)")
    status, error = said(capsys, "--schema", script, nameless(tmp_path))
    assert status == 1
    assert "it has 1 columns, the binlog's rows have 4" in error


def test_positions_lie_in_the_files_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bare.000001"
    path.write_bytes(b"\xfebin")
    status, error = said(capsys, path, "--from", "other.000001:4")
    assert status == 1
    assert "other.000001 is none of the files given" in error
