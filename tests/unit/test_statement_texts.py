"""Texts of statements cost what their length says, in time and memory, whatever is in them; the long ones hold nobody
up."""

from __future__ import annotations

import asyncio
import gc
import importlib
import pkgutil
import re
import re._constants as code  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import headrace.formats
import headrace.mysql
from headrace.formats.canal.format import CompatFormat
from headrace.model import Position, SchemaChange
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.query_event import QueryEvent
from headrace.mysql.events.statements import Statement
from headrace.mysql.events.statements import classify as kind_of
from headrace.mysql.schema.ddl.classify import LONG, classify
from headrace.mysql.schema.gap import DdlScan
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.sql.dialect import Dialect
from tests.made_binlog import Binlog, close_all, decoder, feed
from tests.unit.test_debezium_format import debezium

MYSQL = Dialect(mariadb=False, version=90700)
GREEDY = (code.MAX_REPEAT, code.MIN_REPEAT)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def patterns() -> dict[str, re.Pattern[Any]]:
    """Every pattern that a module of the source or of a format holds, also within a dict or tuple."""
    found: dict[str, re.Pattern[Any]] = {}
    for package in (headrace.mysql, headrace.formats):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            for name, value in vars(importlib.import_module(module.name)).items():
                values = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
                found.update({f"{module.name}.{name}": one for one in values if isinstance(one, re.Pattern)})
    return found


def nested(items: Any, *, within: bool = False) -> bool:
    """Whether an unbounded repeat that may be tried again stands within another one."""
    for operation, argument in items:
        if operation in GREEDY:
            _, most, inner = argument
            unbounded = most is code.MAXREPEAT
            if (within and unbounded) or nested(inner, within=within or unbounded):
                return True
        elif operation is code.POSSESSIVE_REPEAT:
            if nested(argument[2]):
                return True
        elif operation is code.SUBPATTERN:
            if nested(argument[3], within=within):
                return True
        elif operation is code.BRANCH:
            if any(nested(branch, within=within) for branch in argument[1]):
                return True
        elif operation is code.ATOMIC_GROUP:
            if nested(argument):
                return True
        elif operation in (code.ASSERT, code.ASSERT_NOT) and nested(argument[1]):
            return True
    return False


def test_no_pattern_repeats_a_repeat() -> None:
    assert nested(parser.parse(r"(?:\s+|x)*y")), "the check itself"
    assert nested(parser.parse(r"(a*)+"))
    assert not nested(parser.parse(r"(?:[^`]++|``)*+`"))
    found = patterns()
    assert len(found) > 20
    assert [name for name, pattern in found.items() if nested(parser.parse(pattern.pattern, pattern.flags))] == []


HOSTILE: dict[str, Callable[[int], str]] = {
    "comments": lambda n: "/**/" * (n // 4) + "CREATE TABLE t (a int)",
    "one comment": lambda n: "/*" + "x" * n + "*/ CREATE TABLE t (a int)",
    "nested comments": lambda n: "/*!99999 " + "/*" * (n // 4) + "*/" * (n // 4) + "*/ CREATE TABLE t (a int)",
    "nested comments without end": lambda n: "/*!99999 " + "/*" * (n // 2),
    "line comments": lambda n: "-- \n#\n" * (n // 6) + "ALTER TABLE t ADD b int",
    "stars": lambda n: "/*" + "*" * n + "/ DROP TABLE t",
    "spaces": lambda n: "CREATE" + " \t\n" * (n // 3) + "TABLE t (a int)",
    "digits": lambda n: "1" * n + "a",
    "hex": lambda n: "0x" + "1" * n + "g",
    "introducers": lambda n: "SELECT " + "_a" * (n // 2),
    "quotes": lambda n: "CREATE TABLE t (a int COMMENT '" + "''" * (n // 2) + "')",
    "backslashes": lambda n: "CREATE TABLE t (a int COMMENT '" + "\\'" * (n // 2) + "')",
    "a string without end": lambda n: "INSERT INTO t VALUES ('" + "x" * n,
    "backquotes without end": lambda n: "`" * (n | 1),
    "parentheses": lambda n: "CREATE TABLE t " + "(" * n,
    "variables": lambda n: "SET @" + "a" * n,
    "a procedure": lambda n: "CREATE PROCEDURE p() BEGIN " + "SELECT 1; " * (n // 10) + "END START TRANSACTION",
    "beyond the limit": lambda n: "CREATE TABLE t (" + "a int, " * (n // 7) + "b int)",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_time_and_memory_to_parse_a_statement_are_proportional_to_its_length(what: str) -> None:
    """Of 300 kB: what it replaced took 33 s for the one, 117 bytes a character for the other, and had no end."""

    def parsed(size: int) -> tuple[float, bytes, Any]:
        text = HOSTILE[what](size).encode()
        gc.disable()  # its time depends on what other tests have left
        try:
            began = time.process_time()
            kind_of(text, MYSQL)
            info = classify(QueryEvent("shop", text), mariadb=False, version="9.7.4")
            return time.process_time() - began, text, info
        finally:
            gc.enable()

    eighth, _, _ = parsed(37_500)
    whole, text, info = parsed(300_000)
    assert whole < 24 * eighth + 0.5, "8 times as long if it is proportional to the length, 64 if to its square"
    assert info.category in ("ddl", "dml", "other")
    tracemalloc.start()
    try:
        kind_of(text, MYSQL)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text) + 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("before", ["/**/" * 27, "/* a */ " * 1000, "#\n" * 30])
def test_formats_do_not_read_the_text_again(before: str) -> None:
    reported = list[SchemaChange]()
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    log = Binlog().begin_file()
    log.query(f"{before}CREATE TABLE t (a INT)")
    feed(decoder([], history=history, statement=reported.append), bytes(log.packets))
    [change] = reported
    assert (change.is_ddl, change.alters, change.table) == (True, False, "t")
    for fmt in (CompatFormat(), debezium(schema_topic="s")):
        began = time.process_time()
        assert fmt.schema_change(change, 1)
        assert time.process_time() - began < 2


def long_statement() -> str:
    return "CREATE TABLE t (a int) COMMENT '" + "x" * LONG + "'"


async def test_a_long_statement_is_read_apart_before_its_event_is_taken() -> None:
    """As the stream does it: the loop goes on meanwhile."""
    reported = list[SchemaChange]()
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_001)
    log.query(long_statement())
    log.transaction(2, 1_700_000_000_000_002, [(1, "a")])
    changes: list[Any] = []
    d = decoder(changes, history=history, statement=reported.append, apart=True)
    data = bytes(log.packets)
    at, more = d.feed(data, 0, lambda: False)
    assert (reported, changes, more) == ([], [], False)
    assert d.statements.waiting is not None
    await d.statements.read_apart()
    assert d.statements.waiting is None
    while at < len(data):
        at, _ = d.feed(data, at, lambda: False)
    assert [change.table for change in reported] == ["t"]
    assert len(changes) == 1
    schema = history.table("shop", "t")
    assert schema is not None
    assert [column.name for column in schema.columns] == ["a"]


async def test_the_loop_goes_on_while_a_long_statement_is_read() -> None:
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.005)
            turns += 1

    log = Binlog().begin_file()
    log.query("CREATE TABLE t (" + ", ".join(f"c{i} int" for i in range(20_000)) + ")")
    d = decoder([], history=history, options=DecoderOptions(), apart=True)
    feed(d, bytes(log.packets))
    task = asyncio.create_task(others())
    await d.statements.read_apart()
    assert turns >= 3
    task.cancel()


async def test_a_scan_for_ddl_from_beyond_four_gib_reads_the_file_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dump command has 32 bits for an offset. What lies before the position counts for nothing."""
    log = Binlog().begin_file()
    log.query("ALTER TABLE early ADD a int")
    for log.at in (3 << 30, (4 << 30) + 100, 5 << 30):  # the numbers in events begin anew at 4 GiB
        begin = log.at
        log.event(5, bytes(9))
    log.query("ALTER TABLE late ADD a int")
    end = log.at
    asked: list[tuple[str, int]] = []

    class Stream:
        bytes_received = 0

        async def read(self, data: bytes, need: int, limit: float) -> bytes:
            given, log.packets = bytes(log.packets), bytearray()
            assert given, "the scan should have come to its end"
            return given

    @asynccontextmanager
    async def fake(settings: Any, server_id: int, file: str, offset: int, *, gtids: Any) -> AsyncIterator[Any]:
        asked.append((file, offset))
        yield Stream(), SimpleNamespace(writes_checksums=True)

    monkeypatch.setattr("headrace.mysql.schema.gap.short_dump", fake)
    settings = SimpleNamespace(server_id=1, connect_timeout=1.0)
    server: Any = SimpleNamespace(
        settings=settings, gtid_mode=False, mariadb=False, version="9.7.4", lower_case_table_names=0, archived=None
    )
    scan = DdlScan(server, Position("u", "b.000001", begin))
    await scan.run_to(("b.000001", end))
    await scan.aclose()
    assert asked == [("b.000001", 4)]
    assert scan.last_of_table("shop", "late") == ("b.000001", end)
    assert scan.last_of_table("shop", "early") is None


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        (True, r"CONNECTION='mysql:\/\/u:hunter2@h/d/t'"),
        (True, "COMMENT 'x' CONNECTION 'mysql://hunter2@h'"),
        (True, "ENGINE=CONNECT CONNECTION='DSN=x;UID=u;PWD=hunter2'"),
        (True, "ENGINE=CONNECT OPTION_LIST='host=h,user=u,passwd=hunter2'"),
        (True, """ENGINE=SPIDER COMMENT='wrapper "mysql", auth "hunter2"'"""),
        (True, """COMMENT='srv "s", password "hunter2"'"""),
        (True, r"""COMMENT='srv \'s\', p\assword\t\'hunter2\''"""),
        (True, """PARTITION BY KEY(id) (PARTITION p COMMENT = 'user "u", PassWord = "hunter2"')"""),
        (True, "ENGINE=SPIDER REMOTE_PASSWORD='hunter2'"),
        (True, "`remote_passwd` = hunter2"),
        (True, """ENGINE_ATTRIBUTE='{"password": "x", "p": "https://u:hunter2@h"}'"""),
        (True, "/* was CONNECTION='mysql://u:hunter2@h' */ COMMENT='x'"),
        (True, r"/*!99999 CONNECTION='mysql:\/\/u:hunter2@h' */ COMMENT 'x'"),
        (True, r"/*!99999 COMMENT='srv \'s\', password \'hunter2\'' */ COMMENT 'x'"),
        (True, "/*!99999 OPTION_LIST='user=u,passwd=hunter2' */ COMMENT 'x'"),
        (True, "HTTP='http://h/?user=u&passwd=hunter2'"),
        (True, "COMMENT='see https://u:hunter2@h"),
        (False, "CONNECTION='server-1/table' COMMENT='its password: none, mail to a@b'"),
        (False, "COMMENT='see https://h/password?a@b'"),
        (
            False,
            "ADD COLUMN password VARCHAR(20) DEFAULT 'x', ADD KEY (password), CHANGE pwd p INT COMMENT 'connection'",
        ),
    ],
)
def test_what_may_hold_the_password_of_a_table_elsewhere_is_held_back(secret: bool, text: str) -> None:
    for mariadb, version in ((True, "11.8.2-MariaDB"), (False, "9.7.4")):
        query = QueryEvent("shop", f"ALTER TABLE t {text}".encode())
        assert classify(query, mariadb=mariadb, version=version).secret is secret


@pytest.mark.parametrize(
    "text",
    [
        """CREATE SEQUENCE s ENGINE=SPIDER COMMENT='srv "s", user "u", password "hunter2"'""",
        "CREATE DATABASE d COMMENT 'password=hunter2'",
        "CREATE INDEX i ON t (id) COMMENT 'password=hunter2'",
    ],
)
def test_what_has_options_as_tables_have_is_held_back_too(text: str) -> None:
    assert classify(QueryEvent("shop", text.encode()), mariadb=True, version="11.8.2-MariaDB").secret


def test_a_statement_about_one_table_that_is_too_long_makes_no_other_unknown() -> None:
    text = f"ALTER TABLE t COMMENT='{'x' * 2_000_000}'"
    info = classify(QueryEvent("shop", text.encode()), mariadb=False, version="9.7.4")
    assert (info.tables, info.secret) == ((("shop", "t"),), False)
    assert "characters" in info.problem


@pytest.mark.parametrize("rest", ["", " FROB 1"])
def test_the_account_of_a_table_elsewhere_is_in_no_message_and_no_history(rest: str) -> None:
    reported = list[SchemaChange]()
    history = SchemaHistory(lambda *_: True, mariadb=True, version="10.11.6-MariaDB", lower_case_table_names=0)
    log = Binlog().begin_file()
    log.query("CREATE TABLE t (id int)")
    log.query(f"ALTER TABLE t ENGINE=FEDERATED CONNECTION='mysql://u:hunter2@h/d/t'{rest}")
    feed(decoder([], history=history, statement=reported.append), bytes(log.packets))
    assert len(reported) == 1
    assert "hunter2" not in str(history.take_entries(0))


def test_the_statement_of_rows_that_creates_a_table_on_another_server_is_in_no_message() -> None:
    reported, changes = list[SchemaChange](), list[Any]()
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    wanted = ["CREATE TABLE t SELECT 1", "INSERT INTO t SET name = 'password=x'"]
    log = Binlog().begin_file()
    for number, text in enumerate((*wanted, "CREATE TABLE t CONNECTION='mysql://u:hunter2@h' SELECT 1")):
        log.gtid(number + 1, 1_700_000_000_000_000 + number)
        log.query("BEGIN")
        log.event(29, bytes([len(text)]) + text.encode())
        log.table()
        log.insert((number, "a"))
        log.event(16, bytes(8))
    options = DecoderOptions(dml_queries=True)
    feed(decoder(changes, history=history, statement=reported.append, options=options), bytes(log.packets))
    assert [one.sql for one in reported] == wanted
    assert len(changes) == 3


def test_a_routine_that_begins_a_transaction_does_not_stop_the_destination() -> None:
    reported, changes = list[SchemaChange](), list[Any]()
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    log = Binlog().begin_file()
    for number, text in enumerate(
        (
            "CREATE PROCEDURE p() START TRANSACTION",
            "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO START TRANSACTION",
            "CREATE TABLE u (id int) -- START TRANSACTION",
        )
    ):
        log.gtid(number + 1, 1_700_000_000_000_000 + number)
        log.query(text)
    log.transaction(9, 1_700_000_000_000_009, [(1, "a")])
    feed(decoder(changes, history=history, statement=reported.append), bytes(log.packets))
    assert [len(reported), len(changes)] == [3, 1]
    assert kind_of(b"CREATE TABLE `t` (id int) START TRANSACTION", MYSQL) is Statement.ATOMIC_DDL
