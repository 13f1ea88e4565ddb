"""Every code of every character set: what the servers make of it, and what comes of it as a column's value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from devstack import Stack
from headrace.mysql.values.charsets import codec_of
from tests.binlogs import connect, declared, decode, new_file
from tests.table_reads import rows_now

pytestmark = [pytest.mark.server, pytest.mark.long]

WIDE = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
"""Sets whose characters have at least so many bytes."""


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    server = getattr(stack, request.param)(name=f"charsets-{request.param}")
    yield server
    server.kill()


@pytest.fixture(scope="module")
def cursor(server: Any) -> Iterator[Any]:
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("CREATE DATABASE charsets")
        cursor.execute("CREATE TABLE charsets.codes (c VARBINARY(4) PRIMARY KEY)")
        yield cursor


def fill(cursor: Any, codes: list[bytes]) -> None:
    cursor.execute("TRUNCATE charsets.codes")
    for i in range(0, len(codes), 5000):
        cursor.execute("INSERT INTO charsets.codes VALUES " + ",".join(f"(0x{c.hex()})" for c in codes[i : i + 5000]))


def differences(cursor: Any, charset: str, least: int = 1) -> list[str]:
    """Codes that mean one thing here and another, or nothing, on the server. Its `?` for a code that is none counts as
    nothing; so does a text that is shorter than its characters, which it makes of bytes that are not well formed."""
    cursor.execute(
        f"SELECT c, HEX(CONVERT(CONVERT(c USING {charset}) USING utf8mb4)), CHAR_LENGTH(CONVERT(c USING {charset}))"
        " FROM charsets.codes"
    )
    decode, wrong = codec_of(charset).decode, []
    for code, text, count in cursor.fetchall():
        try:
            ours = decode(code.rjust(least, b"\0"))
        except UnicodeDecodeError:
            ours = None
        theirs: str | None = None
        if text is not None and count != "0" and int(count):
            raw = bytes.fromhex(text)
            marks = code.count(b"?")
            theirs = None if not raw or raw.count(b"?") > marks else raw.decode("utf-8", "surrogatepass")
            if theirs is not None and any("\ud800" <= c <= "\udfff" for c in theirs):
                theirs = None  # MariaDB takes a lone surrogate for a character
        if ours != theirs:
            wrong.append(f"{charset} {code.hex()}: {ours!a}, the server {theirs!a}")
    return wrong


def test_every_code_of_one_two_and_three_bytes_means_what_the_server_says(cursor: Any) -> None:
    cursor.execute("SELECT VERSION()")
    mariadb = "MariaDB" in cursor.fetchone()[0]
    cursor.execute(
        "SELECT character_set_name FROM information_schema.character_sets WHERE character_set_name <> 'binary'"
    )
    sets = [row[0] for row in cursor.fetchall()]
    assert len(sets) >= 39
    one, two = [bytes((i,)) for i in range(256)], [bytes((i, j)) for i in range(256) for j in range(256)]
    three = [bytes((0x8F, i, j)) for i in range(0x80, 256) for j in range(0x80, 256)]
    wrong = []
    fill(cursor, one)
    for charset in sets:
        if charset not in WIDE and (mariadb or charset != "ascii"):  # MySQL drops what is not ASCII
            wrong += differences(cursor, charset)
    # Only MariaDB tells codes that are not well formed; MySQL makes something of them.
    fill(cursor, two if mariadb else [c for c in two if 0x81 <= c[0] <= 0xFE and 0x40 <= c[1] <= 0xFE and c[1] != 0x7F])
    for charset in sets if mariadb else ["gb18030"]:
        wrong += differences(cursor, charset, WIDE.get(charset, 1))
    if mariadb:
        fill(cursor, three)
        for charset in ("ujis", "eucjpms"):
            wrong += differences(cursor, charset)
    assert wrong == []


def test_gb18030_codes_of_four_bytes(cursor: Any) -> None:
    cursor.execute("SELECT COUNT(*) FROM information_schema.character_sets WHERE character_set_name = 'gb18030'")
    if not int(cursor.fetchone()[0]):
        return  # MariaDB has no gb18030
    leads = [0x81, 0x82, 0x83, 0x84, 0x90, 0xE3]
    codes = [
        bytes((a, b, c, d)) for a in leads for b in range(0x30, 0x3A) for c in range(0x81, 0xFF, 3) for d in b"0479"
    ]
    fill(cursor, [*codes, b"\x81\x35\xf4\x37"])
    assert differences(cursor, "gb18030") == []


def test_every_code_that_a_column_stores_comes_as_select_prints_it(cursor: Any, server: Any) -> None:
    """In the stream and in a snapshot. SELECT gives halves of surrogate pairs as bytes that are no UTF-8: they are `?`
    here."""
    cursor.execute(
        "SELECT character_set_name FROM information_schema.character_sets WHERE character_set_name <> 'binary'"
    )
    sets = sorted(row[0] for row in cursor.fetchall())
    one = [bytes((i,)) for i in range(256)]
    two = [bytes((i, j)) for i in range(256) for j in range(256)]
    three = [bytes((0x8F, i, j)) for i in range(0xA1, 0xFF) for j in range(0xA1, 0xFF)]
    three += [bytes((0xED, i, j)) for i in range(0xA0, 0xC0) for j in range(0x80, 0xC0)]
    fill(cursor, [*one, *two, *three])
    cursor.execute("SET sql_log_bin = 1")
    question_marks = {}
    for charset in sets:
        path = new_file(server, cursor)
        cursor.execute("DROP TABLE IF EXISTS charsets.t")
        cursor.execute(f"CREATE TABLE charsets.t (c VARBINARY(4) PRIMARY KEY, v VARCHAR(4) CHARACTER SET {charset})")
        # What is not well formed is stored as something else, or not at all.
        cursor.execute("INSERT IGNORE INTO charsets.t SELECT c, c FROM charsets.codes")
        as_bytes = pymysql.connect(**server.connection("root"), charset="utf8mb4", use_unicode=False)
        with as_bytes, as_bytes.cursor() as other:
            other.execute("SELECT c, v FROM charsets.t ORDER BY c")
            expected = {code: _printed(text) for code, text in other.fetchall()}
        new_file(server, cursor)
        table = declared(cursor, "charsets", "t")
        changes = decode(path, schema="charsets", known={("charsets", "t"): table})
        streamed = [row for change in changes for row in change.rows]
        read = rows_now(server, table)
        for rows in (streamed, read):
            assert len(rows) == len(expected), charset
            assert {row[0]: str(row[1]) for row in rows} == expected, charset
        assert read == streamed, charset
        question_marks[charset] = sum("?" in text for text in expected.values())
    assert question_marks["gbk"] > 2_000
    assert question_marks["euckr"] > 5_000
    assert question_marks["utf16"] > 2_000 or question_marks["ucs2"] > 2_000


def _printed(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogatepass")
    return "".join("?" if "\ud800" <= one <= "\udfff" else one for one in text)
