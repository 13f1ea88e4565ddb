"""Every code of every character set, compared with what the servers make of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from devstack import Stack
from headrace.mysql.values.charsets import codec_of
from tests.binlogs import connect

pytestmark = [pytest.mark.server, pytest.mark.long]

WIDE = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
"""Sets whose characters have at least so many bytes."""


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def cursor(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    server = getattr(stack, request.param)(name=f"charsets-{request.param}")
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("CREATE DATABASE charsets")
        cursor.execute("CREATE TABLE charsets.codes (c VARBINARY(4) PRIMARY KEY)")
        yield cursor
    server.kill()


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
