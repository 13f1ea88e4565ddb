"""`headrace decode` on binlog files that old versions of the servers wrote, against what their own programs print."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devstack import suites
from devstack.cache import Cache
from devstack.servers import MARIADB, MYSQL
from tests import prefork

pytestmark = [pytest.mark.server, pytest.mark.long]

VERSIONS = ("5.1.", "5.6.", "5.7.", "8.0.", "8.3.", "9.0.", "10.0.", "10.3.")
"""Of the servers whose files have rows."""
_TEXT = re.compile(r"headrace: at (\S+:\d+): a statement in schema '[^']*' was written as text")
_ON_PURPOSE = re.compile(
    r"a transaction begins before the one at|the CRC32 of an event|was prepared before headrace began to read"
    r"|event type 17 "
)
"""What stops decoding in files that are damaged on purpose, or have LOAD DATA as a statement."""
_ROW = re.compile(r"### (INSERT INTO|UPDATE|DELETE FROM) `(.*)`\.`(.*)`")
_KINDS = {"INSERT INTO": "INSERT", "UPDATE": "UPDATE", "DELETE FROM": "DELETE"}
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)


@dataclass
class Row:
    """Texts as the servers' programs print them, by the column's number."""

    kind: str
    table: str
    before: dict[int, str] = field(default_factory=dict)
    after: dict[int, str] = field(default_factory=dict)


def printed(command: list[str], path: Path) -> list[Row] | None:
    """The rows that a server's program shows of a file; None when it can't read it."""
    done = subprocess.run(
        [*command, "--no-defaults", "--verbose", "--base64-output=decode-rows", str(path)],
        capture_output=True,
        timeout=60,
    )
    if done.returncode != 0:
        return None
    rows: list[Row] = []
    image: dict[int, str] = {}
    for line in done.stdout.decode("utf-8", "backslashreplace").splitlines():
        if found := _ROW.fullmatch(line):
            rows.append(Row(_KINDS[found[1]], f"{found[2]}.{found[3]}"))
        elif line in ("### WHERE", "### SET"):
            image = rows[-1].before if line == "### WHERE" else rows[-1].after
        elif found := re.match(r"###   @(\d+)=(.*)", line):
            image[int(found[1])] = found[2]
    return rows


def decoded(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The messages of rows, and the error that ended them. Statements that were logged as text are passed over."""
    skip: list[str] = []
    while True:
        done = prefork.run(["decode", "--positional", str(path), *skip], env=dict(os.environ))
        found = _TEXT.search(done.stderr)
        if found is None or len(skip) > 200:
            break
        skip += ["--skip-event", found[1]]
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    error = "" if done.returncode == 0 else done.stderr[done.stderr.rfind("headrace: at ") :]
    assert done.returncode == 0 or error, done.stderr
    return [message for message in messages if not message["isDdl"]], error


def rows_of(messages: list[dict[str, Any]]) -> Iterator[tuple[str, str, dict[int, Any], dict[int, Any]]]:
    """Kind, table, the image before and the one after of each row, by the columns' numbers."""
    for message in messages:
        types = message["mysqlType"]
        places = {name: int(name[1:]) if name[0] == "@" else at for at, name in enumerate(types, 1)}
        for at, row in enumerate(message["data"]):
            after = {places[name]: number(value, types[name]) for name, value in row.items()}
            before = {
                places[name]: number(value, types[name]) for name, value in (message["old"] or [{}] * 99)[at].items()
            }
            table = f"{message['database']}.{message['table']}"
            if message["type"] == "DELETE":
                yield "DELETE", table, after, {}
            elif message["type"] == "INSERT":
                yield "INSERT", table, {}, after
            else:
                yield "UPDATE", table, {**after, **before}, after


def number(value: Any, declared: str) -> Any:
    """A value as the binlog has it: of ENUM and SET the number."""
    labels = re.findall(r"'((?:[^']|'')*)'", declared)
    if value is None or not labels:
        return value
    if declared.startswith("enum"):
        return str(labels.index(value) + 1 if value else 0)
    return str(sum(1 << labels.index(label) for label in value.split(",") if label))


def same(value: Any, text: str) -> bool:
    """Whether a value is what a server's program prints of it."""
    if text == "NULL" or value is None:
        return value is None and text == "NULL"
    if found := re.fullmatch(r"(-\d+) \((\d+)\)", text):  # the binlog does not say whether it has a sign
        return value in found.groups()
    if found := re.fullmatch(r"b'([01]+)'", text):
        return value == str(int(found[1], 2))
    if value == text or value == text.strip("'"):
        return True
    if re.fullmatch(r"'\d{4}:\d\d:\d\d'", text):
        return bool(value == text.strip("'").replace(":", "-"))
    if re.fullmatch(r"\d+(\.\d+)?", text) and re.match(r"\d{4}-", value):
        seconds, _, fraction = text.partition(".")
        shown = (
            f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%d %H:%M:%S}" if int(seconds) else "0000-00-00 00:00:00"
        )
        return bool(value == shown + (f".{fraction}" if fraction else ""))
    if found := re.fullmatch(r"JSON_REPLACE\(@\d+, '\$\.(\w+)', '(.*)'\)", text):  # a partial update
        return bool(json.loads(value)[found[1]] == found[2])
    if text.startswith("["):
        return bool(json.loads(value) == json.loads(text))
    if text.startswith("'"):
        raw = _ESCAPE.sub(
            lambda m: bytes([int(m[1], 16)]) if m[1] else m[2], text[1:-1].encode("utf-8", "surrogateescape")
        )
        readings = [raw.decode("utf-8", "backslashreplace"), raw.decode("latin-1"), base64.b64encode(raw).decode()]
        return value in readings
    try:
        return f"{float(value):.5g}" == f"{float(text.split()[0]):.5g}"
    except ValueError:
        return False


def test_rows_of_old_versions_are_what_the_servers_own_programs_print() -> None:
    cache = Cache()
    mysql = MYSQL.prefix(cache).argv("usr/bin/mysqlbinlog")
    mariadb = [*MARIADB.prefix(cache).argv("")[:-1], str(suites.mariadb_binlog(cache))]
    versions: dict[str, int] = {}
    wrong: list[str] = []
    compared = 0
    for root in (suites.mysql(cache), suites.mariadb(cache)):
        for path in sorted(root.glob("**/std_data/**/*")):
            if not path.is_file() or path.read_bytes()[:4] != b"\xfebin":
                continue
            expected = printed(mysql, path) or printed(mariadb, path)
            if not expected:
                continue
            messages, error = decoded(path)
            found = list(rows_of(messages))
            what = f"{path.relative_to(root)} ({path.read_bytes()[25:40]!r}, {len(expected)} rows, {error})"
            if error and not _ON_PURPOSE.search(error):
                wrong.append(what)
            if len(found) != len(expected) and not error:
                wrong.append(f"{what}: {len(found)} rows")
            for at, (row, (kind, table, before, after)) in enumerate(zip(expected, found, strict=False)):
                differ = [
                    f"@{n} {image.get(n)!r} {text}"
                    for shown, image in ((row.before, before), (row.after, after))
                    for n, text in shown.items()
                    if not same(image.get(n), text)
                ]
                if (row.kind, row.table) != (kind, table) or differ:
                    wrong.append(f"{what}: row {at}: {row.kind} {row.table}, {kind} {table}, {differ}")
                    break
                compared += len(row.before) + len(row.after)
                version = path.read_bytes()[25:75].split(b"-")[0].decode()
                versions[version] = versions.get(version, 0) + 1
    assert not wrong, "\n".join(wrong)
    assert all(any(version.startswith(wanted) for version in versions) for wanted in VERSIONS), versions
    assert compared > 10_000
