"""Binlog files and tables as text that can be compared: decodes a server's file, and reads the same rows by SELECT."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pymysql
from pymysql.converters import encoders

from headrace.model import ABSENT, Column, Operation, Position, Row, RowsChange, TableSchema
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.sql.dialect import charset_named
from headrace.mysql.values.column_types import ValueOptions, java_type
from headrace.mysql.wire.binlog_file import packets
from headrace.ports.source import Receiver
from headrace_common.numbers import float_text

Known = Mapping[tuple[str, str], TableSchema]


class FixedHistory(SchemaHistory):
    """A history that knows each table in one version only."""

    def __init__(self, known: Known) -> None:
        super().__init__(lambda schema, table: True, mariadb=False, version="", lower_case_table_names=0)
        self._known = known

    def table(self, schema: str, table: str) -> TableSchema | None:
        return self._known.get((schema, table))


def decode(
    path: Path,
    *,
    schema: str = "",
    known: Known | None = None,
    values: ValueOptions | None = None,
    whole: bool = False,
) -> list[RowsChange]:
    """The changes in a binlog file, of one schema or of all. `known`: table schemas as declared; without it the
    decoder has what the file says. `whole`: images that lack columns are refused."""
    changes: list[RowsChange] = []
    decoder = Decoder(
        DumpStart(Position("server", path.name, 4), checksums=True),
        Receiver(rows=changes.append),
        captures=lambda s, t: s == schema or not schema,
        history=FixedHistory(known) if known is not None else None,
        options=DecoderOptions(values=values or ValueOptions(), partial_images=not whole),
    )
    for chunk in packets(path):
        at, more = 0, True
        while more:
            at, more = decoder.feed(chunk, at, lambda: False)
            assert decoder.described.wanted is None, f"the table schema of {decoder.described.wanted} is not known"
        assert at == len(chunk)
    return changes


def connect(server: Any, schema: str = "") -> Any:
    """A connection whose results are text as the server prints it, in UTC, and which takes any value."""
    return pymysql.connect(
        **server.connection("root"),
        database=schema or None,
        autocommit=True,
        charset="utf8mb4",
        conv=dict(encoders),
        init_command="SET time_zone = '+00:00', sql_mode = ''",
    )


def new_file(server: Any, cursor: Any) -> Path:
    """Begins a new binlog file and returns its path."""
    cursor.execute("FLUSH BINARY LOGS")
    cursor.execute("SHOW BINARY LOGS")  # what shows the last one alone has another name in each version
    return Path(server.datadir) / cursor.fetchall()[-1][0]


def declared(cursor: Any, schema: str, table: str) -> TableSchema:
    """The schema of a table as information_schema tells it."""
    cursor.execute(
        "SELECT column_name, column_type, is_nullable, character_set_name, character_maximum_length,"
        " character_octet_length, numeric_precision, numeric_scale, datetime_precision, column_key"
        " FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
        (schema, table),
    )
    columns, keys = [], []
    for name, kind, nullable, charset, characters, octets, precision, scale, fsp, key in cursor.fetchall():
        kind = kind.decode() if isinstance(kind, bytes) else kind
        kind = kind.replace(" zerofill", "")
        bare = kind.split("(", 1)[0].split(" ", 1)[0]
        labels = tuple(m.replace("''", "'") for m in re.findall(r"'((?:[^']|'')*)'", kind))
        unsigned = kind.endswith(" unsigned")
        binary = bare in ("binary", "varbinary") or bare.endswith("blob")
        length = 0
        if bare in ("char", "varchar"):
            length = int(characters)
        elif bare in ("binary", "varbinary"):
            length = int(octets)
        elif bare in ("decimal", "bit"):
            length = int(precision)
        elif fsp:
            length = int(fsp)
        columns.append(
            Column(
                name,
                kind,
                java_type(bare, unsigned=unsigned),
                unsigned,
                nullable == "YES",
                "binary" if binary else charset_named(charset or ""),
                labels if bare in ("enum", "set") else (),
                length,
                int(scale or 0) if bare == "decimal" else 0,
            )
        )
        if key == "PRI":
            keys.append(len(columns) - 1)
    return TableSchema(schema, table, tuple(columns), tuple(keys))


_HEX = {
    "binary",
    "varbinary",
    "tinyblob",
    "blob",
    "mediumblob",
    "longblob",
    "vector",
    "geometry",
    "point",
    "linestring",
}
_HEX |= {"polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection"}


def expression(column: Column, *, mariadb: bool) -> str:
    """The SELECT expression of a column whose text shown() equals."""
    name = f"`{column.name.replace('`', '``')}`"
    if column.kind in _HEX:
        return f"HEX({name})"
    if column.kind == "bit":
        return f"CAST({name} AS UNSIGNED)"
    if column.kind == "float" or (column.kind == "double" and "(" in column.mysql_type):
        return f"CAST({name} AS DOUBLE)" if mariadb else f"{name} + 0e0"
    if column.kind == "json":
        return f"CAST({name} AS CHAR)"
    return name


def shown(value: Any, column: Column) -> str | None:
    """A value of the daemon as the text that expression() selects. FLOATs are compared by their bits: the server prints
    six digits of them, or all digits of the double nearest to them."""
    if value is None:
        return None
    assert value is not ABSENT
    if column.kind == "vector":
        numbers = json.loads(value)
        return struct.pack(f"<{len(numbers)}f", *numbers).hex().upper()
    if column.kind == "float":
        return struct.pack("<f", value).hex()
    if column.kind == "double":
        return float_text(value)
    if isinstance(value, bytes):
        return value.hex().upper()
    return str(value)


def select(cursor: Any, schema: TableSchema, *, mariadb: bool) -> dict[str, list[str | None]]:
    """Every row of a table by its first column, as shown() gives its values."""
    names = ", ".join(expression(column, mariadb=mariadb) for column in schema.columns)
    cursor.execute(f"SELECT {names} FROM `{schema.schema}`.`{schema.table}`")
    rows = {}
    for row in cursor.fetchall():
        texts = []
        for value, column in zip(row, schema.columns, strict=True):
            if isinstance(value, bytes):
                value = value.decode()
            if value is not None and column.kind == "float":
                value = struct.pack("<f", float(value)).hex()
            elif value is not None and column.kind == "double":
                value = float_text(float(value)) if "(" in column.mysql_type else value
            texts.append(value)
        rows[texts[0]] = texts
    return rows


def image(changes: list[RowsChange], schema: TableSchema) -> dict[str, list[str | None]]:
    """The table that the changes make, as select() gives it; checks that each change fits what stood there before."""
    rows: dict[str, list[str | None]] = {}
    for change in changes:
        if (change.schema.schema, change.schema.table) != (schema.schema, schema.table):
            continue
        texts = [[shown(v, c) for v, c in zip(r, schema.columns, strict=True)] for r in change.rows]
        if change.before is not None:
            old = [[shown(v, c) for v, c in zip(r, schema.columns, strict=True)] for r in change.before]
            for before in old:
                assert rows.pop(before[0]) == before
        for row in texts:
            if change.operation is Operation.DELETE:
                assert rows.pop(row[0]) == row
            else:
                rows[row[0]] = row
    return rows


def final_rows(changes: list[RowsChange]) -> dict[Any, Row]:
    """The rows of one table that the changes leave, by their first column, as they were decoded."""
    rows: dict[Any, Row] = {}
    for change in changes:
        for gone in change.before or ():
            del rows[gone[0]]
        for row in change.rows:
            if change.operation is Operation.DELETE:
                del rows[row[0]]
            else:
                rows[row[0]] = row
    return rows
