"""Checks whether a result has the columns of a table schema, as far as the result shows: not names, keys and members of
ENUMs."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model import Column
from headrace.mysql.values import textcode
from headrace.mysql.values.charsets import UnknownType, charset_of
from headrace.mysql.values.mariadb import FIXED_BINARY
from headrace.mysql.wire.query_stream import ResultColumn

_STRINGS = frozenset({15, 249, 250, 251, 252, 253, 254})
_KINDS: dict[str, frozenset[int]] = {
    **{name: frozenset({number}) for name, number in (("tinyint", 1), ("smallint", 2), ("mediumint", 9), ("int", 3))},
    "bigint": frozenset({8}),
    "decimal": frozenset({0, 246}),
    "bit": frozenset({16}),
    "year": frozenset({13}),
    "date": frozenset({10, 14}),
    "datetime": frozenset({12, 18}),
    "timestamp": frozenset({7, 17}),
    "time": frozenset({11, 19}),
    "json": frozenset({245}) | _STRINGS,
    "vector": frozenset({242}) | _STRINGS,
    **dict.fromkeys((*textcode.TEXTS, *textcode.BYTES, *FIXED_BINARY), _STRINGS),
    **dict.fromkeys(textcode.GEOMETRIES, frozenset({255})),
}
"""Type numbers by declared type; unknown for columns that are selected by an expression."""


def differing(columns: Sequence[Column], shown: Sequence[ResultColumn]) -> str:
    """Returns the difference between a result and the selected columns; "" if none is visible."""
    if len(columns) != len(shown):
        return f"a result has {len(shown)} columns instead of {len(columns)}"
    for column, result in zip(columns, shown, strict=True):
        if not _same(column, result):
            return f"column `{column.name}` is not {column.mysql_type} any more"
    return ""


def _same(column: Column, shown: ResultColumn) -> bool:
    kinds = _KINDS.get(column.kind)
    if kinds is None:
        return True
    if shown.kind not in kinds:
        return False
    if column.kind in textcode.INTS:
        return shown.unsigned == column.unsigned
    if column.kind == "decimal":
        return (shown.unsigned, shown.decimals) == (column.unsigned, column.scale)
    if column.kind in ("datetime", "timestamp", "time"):
        return shown.decimals > 6 or shown.decimals == column.length
    if column.charset and kinds is _STRINGS and column.kind not in FIXED_BINARY:
        try:
            return charset_of(shown.collation) == column.charset
        except UnknownType:
            return True
    return True
