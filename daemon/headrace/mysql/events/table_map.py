"""Turns TABLE_MAP events into table schemas (wire format: MySQL's Table_map_event)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

from headrace.model import Column, TableSchema
from headrace.mysql.values import column_types as ct
from headrace.mysql.values.charsets import UNKNOWN, UnknownType, charset_of, codec_of
from headrace.mysql.values.column_types import Field, ValueOptions
from headrace.mysql.values.lengths import lenenc, lenenc_string

_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SET_LABELS, _ENUM_LABELS = 1, 2, 3, 4, 5, 6
_SIMPLE_KEY, _PREFIX_KEY, _LABEL_DEFAULT_CHARSET, _LABEL_COLUMN_CHARSET = 8, 9, 10, 11


_HIDDEN = re.compile(r"DB_ROW_HASH_\d+")
"""MariaDB's own columns after a table's last, for UNIQUE on a whole TEXT or BLOB; no SELECT shows them."""


@dataclass(frozen=True, slots=True)
class RowSchema:
    """A table for the row decoder: the table schema, and the layout of each column in a row. There may be more fields
    than columns: those are hidden."""

    schema: TableSchema
    fields: tuple[Field, ...]
    kinds: tuple[int, ...]


def table_name(body: bytes) -> tuple[str, str, int]:
    """Returns schema, table and the end of both, from the body without its table id: enough for a filter."""
    n = body[2]
    schema = body[3 : 3 + n].decode()
    at = 3 + n + 1
    m = body[at]
    return schema, body[at + 1 : at + 1 + m].decode(), at + 1 + m + 1


class TableMap:
    """The content of a TABLE_MAP event: types, metadata and NULL bits always, names and the rest if the server writes
    binlog_row_metadata=FULL.

    Raises UnknownType for a column that headrace does not decode, ValueError or IndexError for bytes that are no
    TABLE_MAP."""

    def __init__(self, body: bytes, *, mariadb: bool = False) -> None:
        """`body` is the event's, without the table id. MariaDB gives its geometries a collation, MySQL does not."""
        self._character = ct.CHARACTER_MARIADB if mariadb else ct.CHARACTER
        self._mariadb, self._hidden = mariadb, tuple[Column, ...]()
        self.schema, self.table, at = table_name(body)
        count, at = lenenc(body, at)
        kinds = body[at : at + count]
        if len(kinds) != count:
            raise ValueError("the column types end beyond their event")
        meta_block, at = lenenc_string(body, at + count)
        self.types = _metadata(kinds, meta_block)
        width = (count + 7) // 8
        self.nulls = int.from_bytes(body[at : at + width], "little") & ((1 << count) - 1)
        self._blocks = _optional(body, at + width)
        self.has_names = _NAMES in self._blocks or not count

    def described(self) -> TableSchema:
        """Returns the table as full metadata describes it. Raises ValueError if there is none."""
        if not self.has_names:
            raise ValueError(f"table {self.schema}.{self.table} comes without column names")
        columns = _Columns(self.types, self._blocks, self._character)
        names = columns.names()
        if len(names) != len(self.types):
            raise ValueError(f"the table has {len(self.types)} columns and {len(names)} names")
        keys = columns.keys()
        if keys and max(keys) >= len(names):
            raise ValueError("the primary key names a column that the table does not have")
        made = []
        for i, (kind, meta) in enumerate(self.types):
            try:
                made.append(
                    ct.column_from_map(
                        names[i],
                        kind,
                        meta,
                        unsigned=columns.unsigned[i],
                        charset=charset_of(columns.collations[i]) if columns.collations[i] else "",
                        labels=columns.labels[i],
                        nullable=bool(self.nulls >> i & 1),
                    )
                )
            except UnknownType as error:
                raise UnknownType(f"column `{names[i]}`: {error}") from None
        visible = len(made)
        while self._mariadb and visible and _HIDDEN.fullmatch(names[visible - 1]):
            visible -= 1
        self._hidden = tuple(made[visible:])
        if keys and max(keys) >= visible:
            keys = ()
        return TableSchema(self.schema, self.table, tuple(made[:visible]), keys)

    def positional(self) -> TableSchema:
        """Returns the table as the event alone describes it: its columns are @1, @2 and so on. Missing facts count as
        signed and as of an unknown character set; ENUM and SET have no members."""
        columns = _Columns(self.types, self._blocks, self._character, certain=False)
        made = [
            ct.column_from_map(
                f"@{i + 1}",
                kind,
                meta,
                unsigned=columns.unsigned[i],
                charset=charset_of(columns.collations[i]) if columns.collations[i] else UNKNOWN,
                nullable=bool(self.nulls >> i & 1),
            )
            for i, (kind, meta) in enumerate(self.types)
        ]
        return TableSchema(self.schema, self.table, tuple(made), ())

    def hide_hashes(self, columns: int) -> None:
        """Treats what follows this many columns as hidden ones, if possible: MariaDB keeps hashes (BIGINT) of what is
        UNIQUE and too long for an index."""
        extra = self.types[columns:]
        if self._mariadb and all(kind == ct.LONGLONG for kind, _ in extra):
            self._hidden = tuple(Column(f"DB_ROW_HASH_{n}", "bigint unsigned", 3, True) for n, _ in enumerate(extra, 1))

    @property
    def visible_types(self) -> list[tuple[int, int]]:
        """Returns the types of the declared columns; known after described() or hide_hashes()."""
        return self.types[: len(self.types) - len(self._hidden)]

    def row_schema(self, schema: TableSchema, options: ValueOptions) -> RowSchema:
        """Returns the layout of the table's rows for these columns."""
        fields = []
        for (kind, meta), column in zip(self.types, (*schema.columns, *self._hidden), strict=True):
            try:
                fields.append(ct.field_of(kind, meta, column, options))
            except UnknownType as error:
                raise UnknownType(f"column `{column.name}`: {error}") from None
        return RowSchema(schema, tuple(fields), tuple(kind for kind, _ in self.types))


def _metadata(kinds: bytes, block: bytes) -> list[tuple[int, int]]:
    """Returns (true type, metadata) a column; metadata of two bytes is little endian, first byte low."""
    types, at = [], 0
    for kind in kinds:
        size = ct.METADATA_SIZE.get(kind)
        if size is None:
            raise UnknownType(f"column type {kind} is not decoded yet")
        meta = int.from_bytes(block[at : at + size], "little")
        at += size
        types.append(ct.real_type(kind, meta))
    if at != len(block):
        raise ValueError("the metadata does not fit the column types")
    return types


def _optional(body: bytes, at: int) -> dict[int, bytes]:
    blocks = {}
    while at < len(body):
        kind = body[at]
        blocks[kind], at = lenenc_string(body, at + 1)
    return blocks


class _Columns:
    """The content of the optional blocks, assigned to the columns that each block is about. Unless `certain`, character
    sets and members may be missing."""

    def __init__(
        self, types: list[tuple[int, int]], blocks: dict[int, bytes], character: frozenset[int], *, certain: bool = True
    ) -> None:
        self.types, self._blocks, self._certain = types, blocks, certain
        self.unsigned = [False] * len(types)
        signs = blocks.get(_SIGNEDNESS, b"")
        numeric = [i for i, (kind, _) in enumerate(types) if kind in ct.NUMERIC]
        for bit, i in enumerate(numeric):
            self.unsigned[i] = bool(bit // 8 < len(signs) and signs[bit // 8] >> (7 - bit % 8) & 1)
        self.collations = [0] * len(types)
        self._collate([i for i, (k, _) in enumerate(types) if k in character], _DEFAULT_CHARSET, _COLUMN_CHARSET)
        labelled = [i for i, (k, _) in enumerate(types) if k in (ct.ENUM, ct.SET)]
        self._collate(labelled, _LABEL_DEFAULT_CHARSET, _LABEL_COLUMN_CHARSET)
        self.labels: list[tuple[str, ...]] = [()] * len(types)
        self._label(ct.SET, _SET_LABELS)
        self._label(ct.ENUM, _ENUM_LABELS)

    def _collate(self, indexes: list[int], default: int, each: int) -> None:
        if default in self._blocks:
            numbers = _numbers(self._blocks[default])
            for i in indexes:
                self.collations[i] = numbers[0]
            for at, collation in zip(islice(numbers, 1, None, 2), islice(numbers, 2, None, 2), strict=True):
                self.collations[indexes[at]] = collation
        elif each in self._blocks:
            for i, collation in zip(indexes, _numbers(self._blocks[each]), strict=True):
                self.collations[i] = collation
        elif indexes and self._certain:
            raise ValueError("text columns come without their character sets")

    def _label(self, kind: int, block: int) -> None:
        if block not in self._blocks and not self._certain:
            return
        body, at = self._blocks.get(block, b""), 0
        for i, (k, _) in enumerate(self.types):
            if k != kind:
                continue
            count, at = lenenc(body, at)
            codec, labels = codec_of(charset_of(self.collations[i])), []
            for _ in range(count):
                raw, at = lenenc_string(body, at)
                labels.append(codec.decode(raw))
            self.labels[i] = tuple(labels)

    def names(self) -> list[str]:
        body, at, names = self._blocks.get(_NAMES, b""), 0, []
        while at < len(body):
            raw, at = lenenc_string(body, at)
            names.append(raw.decode())
        return names

    def keys(self) -> tuple[int, ...]:
        if _SIMPLE_KEY in self._blocks:
            return tuple(_numbers(self._blocks[_SIMPLE_KEY]))
        return tuple(_numbers(self._blocks.get(_PREFIX_KEY, b""))[::2])


def _numbers(body: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(body):
        n, at = lenenc(body, at)
        numbers.append(n)
    return numbers
