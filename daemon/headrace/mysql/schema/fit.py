"""Checks whether a table schema fits a TABLE_MAP event: all that the event has without its optional metadata."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model import Column, TableSchema
from headrace.mysql.values import column_types as ct
from headrace.mysql.values.charsets import WIDTHS

_INTS = {"tinyint": ct.TINY, "smallint": ct.SHORT, "mediumint": ct.INT24, "int": ct.LONG, "bigint": ct.LONGLONG}
_PLAIN = {"float": (ct.FLOAT, 4), "double": (ct.DOUBLE, 8), "date": (ct.DATE, 0), "year": (ct.YEAR, 0)}
_PLAIN |= {"json": (ct.JSON, 4), "vector": (ct.VECTOR, 4)}
_PLAIN |= {"uuid": (ct.STRING, 16), "inet6": (ct.STRING, 16), "inet4": (ct.STRING, 4)}
_TEMPORAL = {"time": (ct.TIME2, ct.TIME), "datetime": (ct.DATETIME2, ct.DATETIME)}
_TEMPORAL |= {"timestamp": (ct.TIMESTAMP2, ct.TIMESTAMP)}
_LENGTHS = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_GEOMETRIES = frozenset({"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"})
_GEOMETRIES |= {"multipolygon", "geometrycollection", "geomcollection"}


def misfit(schema: TableSchema, types: Sequence[tuple[int, int]], nulls: int) -> str:
    """Returns why a table schema does not fit a TABLE_MAP's (type, metadata) pairs, as column_types.real_type gives
    them, and NULL bits; "" if it fits. Names, signs and character sets of one width can't be checked this way."""
    every = (1 << len(types)) - 1
    joined = nulls & every == every  # servers write all columns of a table so that an outer join includes in an UPDATE
    if len(types) != len(schema.columns):
        return f"it has {len(schema.columns)} columns, the binlog's rows have {len(types)}"
    for i, (column, (kind, meta)) in enumerate(zip(schema.columns, types, strict=True)):
        if not _fits(column, kind, meta):
            return f"column `{column.name}` is {column.mysql_type}, the binlog has type {kind} with metadata {meta}"
        if column.nullable != bool(nulls >> i & 1) and not (column.auto_increment or joined):
            # MariaDB accepts NULL for AUTO_INCREMENT, and shows it as NOT NULL
            may = "may" if nulls >> i & 1 else "may not"
            return f"column `{column.name}` {may} be NULL in the binlog"
    return ""


def _fits(column: Column, kind: int, meta: int) -> bool:
    name = column.kind
    if name in _INTS:
        return kind == _INTS[name]
    if name in _PLAIN:
        return (kind, meta) == _PLAIN[name]
    if name in _TEMPORAL:
        # MariaDB's old storage has no metadata: its fraction's digits can't be compared.
        return (kind, meta) == (_TEMPORAL[name][0], column.length) or kind == _TEMPORAL[name][1]
    if name == "decimal":
        return (kind, meta) == (ct.NEWDECIMAL, column.length | column.scale << 8)
    if name == "bit":
        return (kind, meta) == (ct.BIT, column.length % 8 | column.length // 8 << 8)
    if name in ("enum", "set"):
        return (kind, meta) == _labelled(name, len(column.labels))
    if name in _GEOMETRIES:
        return kind == ct.GEOMETRY and meta == 4
    return _text_fits(column, kind, meta)


def _labelled(name: str, count: int) -> tuple[int, int]:
    if name == "enum":
        return ct.ENUM, 1 if count < 256 else 2
    size = (count + 7) // 8
    return ct.SET, size if size <= 4 else 8


def _text_fits(column: Column, kind: int, meta: int) -> bool:
    name, compressed = column.kind, "COMPRESSED" in column.mysql_type
    if name.endswith(("text", "blob")):
        size = _LENGTHS.get(name[:-4])
        return kind == (ct.BLOB_COMPRESSED if compressed else ct.BLOB) and meta == size
    width = WIDTHS.get(column.charset)
    if width is None or name not in ("char", "binary", "varchar", "varbinary"):
        return False
    size = column.length * width
    if name in ("char", "binary"):
        return (kind, meta) == (ct.STRING, size)
    if compressed:  # one byte of header counts
        return kind == ct.VARCHAR_COMPRESSED and meta in (size, size + 1)
    return kind in (ct.VARCHAR, ct.VAR_STRING) and meta == size
