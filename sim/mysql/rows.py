"""Events of rows in bytes (MySQL source code documentation, Table_map_event and Rows_event)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sim.mysql.collations import NUMBERS
from sim.mysql.schema import Definition, Row
from sim.mysql.wire import number, text

_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _ENUM_LABELS, _KEY, _VISIBLE = 1, 2, 3, 4, 6, 8, 12
_LABELS = 8
"""What is added to a number of character sets for those of ENUM."""
_END_OF_STATEMENT = 1


def table_map(definition: Definition, table_id: int, *, full: bool) -> bytes:
    """Returns the body of TABLE_MAP. `full`: with column names (binlog_row_metadata = FULL)."""
    columns = definition.columns
    body = table_id.to_bytes(6, "little") + b"\x01\0"
    for name in (definition.schema, definition.name):
        raw = name.encode()
        body += bytes([len(raw)]) + raw + b"\0"
    meta = b"".join(column.type.meta for column in columns)
    body += number(len(columns)) + bytes(column.type.binlog for column in columns) + number(len(meta)) + meta
    body += _bits(column.nullable for column in columns)
    for kind, block in _metadata(definition, full=full):
        body += bytes([kind]) + number(len(block)) + block
    return body


def _bits(flags: Iterable[bool]) -> bytes:
    """Returns one bit a flag, the first one lowest."""
    listed = list(flags)
    made = sum(1 << at for at, flag in enumerate(listed) if flag)
    return made.to_bytes((len(listed) + 7) // 8, "little")


def _high_bits(flags: Sequence[bool]) -> bytes:
    """Returns one bit a flag, the first one highest."""
    packed = bytearray((len(flags) + 7) // 8)
    for at, flag in enumerate(flags):
        packed[at // 8] |= flag << 7 - at % 8
    return bytes(packed)


def _metadata(definition: Definition, *, full: bool) -> list[tuple[int, bytes]]:
    columns = definition.columns
    blocks: list[tuple[int, bytes]] = []
    signs = [column.type.unsigned for column in columns if column.type.numeric]
    if signs:
        blocks.append((_SIGNEDNESS, _high_bits(signs)))
    collations = [NUMBERS[column.type.collation] for column in columns if column.type.character]
    if collations:
        blocks.append(_charsets(collations))
    if full:
        blocks.append((_NAMES, b"".join(text(column.name.encode()) for column in columns)))
        labelled = [column.type for column in columns if column.type.labels]
        if labelled:
            form, numbers = _charsets([NUMBERS[one.collation] for one in labelled])
            blocks.append((form + _LABELS, numbers))
            lists = (
                number(len(one.labels)) + b"".join(text(label.encode()) for label in one.labels) for one in labelled
            )
            blocks.append((_ENUM_LABELS, b"".join(lists)))
        if definition.identity:
            blocks.append((_KEY, b"".join(map(number, definition.identity))))
        blocks.append((_VISIBLE, _high_bits([True] * len(columns))))
    return blocks


def _charsets(collations: Sequence[int]) -> tuple[int, bytes]:
    """Returns the most frequent collation with the exceptions, or each one if there are many exceptions."""
    usual = max(sorted(collations), key=collations.count)
    exceptions = [(at, one) for at, one in enumerate(collations) if one != usual]
    if 1 + 2 * len(exceptions) > len(collations):
        return _COLUMN_CHARSET, b"".join(map(number, collations))
    return _DEFAULT_CHARSET, number(usual) + b"".join(number(at) + number(one) for at, one in exceptions)


class RowWriter:
    """Writes rows of one table into rows events."""

    def __init__(self, definition: Definition, flags: int = 0) -> None:
        """`flags` are those of every event."""
        count = len(definition.columns)
        self._images = [column.type.image for column in definition.columns]
        self._null_bytes = (count + 7) // 8
        self._bitmap = b"\xff" * self._null_bytes  # all columns, and the bits after them
        self._count, self._flags = number(count), flags

    def image(self, row: Row) -> bytes:
        """Returns a row image: a bit a NULL, and the values."""
        nulls, bit = 0, 1
        parts = [b""]
        for value, image in zip(row, self._images, strict=True):
            if value is None:
                nulls |= bit
            else:
                parts.append(image(value))
            bit <<= 1
        parts[0] = nulls.to_bytes(self._null_bytes, "little")
        return b"".join(parts)

    def events(self, table_id: int, images: Sequence[bytes], most: int, *, two: bool, last: bool) -> list[bytes]:
        """Returns the bodies of the events for these images, each of at most `most` bytes unless one row is larger.
        `two`: an image before and one after form a row. `last`: the statement ends with them."""
        groups: list[list[bytes]] = [[]]
        bitmaps = self._bitmap * (2 if two else 1)
        size, fixed = 0, 10 + len(number(self._null_bytes)) + len(bitmaps)
        for image in images:
            if groups[-1] and fixed + size + len(image) > most:
                groups.append([])
                size = 0
            groups[-1].append(image)
            size += len(image)
        numbered, bodies = table_id.to_bytes(6, "little"), []
        for at, group in enumerate(groups, 1):
            flags = self._flags | (_END_OF_STATEMENT if last and at == len(groups) else 0)
            bodies.append(numbered + bytes([flags, 0, 2, 0]) + self._count + bitmaps + b"".join(group))
        return bodies
