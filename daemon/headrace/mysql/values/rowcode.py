"""Generates the row decoder of a table schema: straight-line Python over struct runs, no branch a column."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from headrace.model import ABSENT, Row
from headrace.mysql.values.codewriter import CodeWriter, DataOverrun
from headrace.mysql.values.column_types import Field

RowDecoder = Callable[[bytes, int, int], list[Row]]
"""(bytes, start, end) -> the row images between; raises when they do not end exactly there."""
SingleDecoder = Callable[[bytes, int, int], tuple[Row, int]]
"""(bytes, start, end) -> one row image and where it ends."""
ValueDecoder = Callable[[bytes, int, int], tuple[Any, int]]
"""(bytes, start, end) -> one value and where it ends."""


def make_decoder(fields: Sequence[Field], *images: int, visible: int | None = None) -> RowDecoder:
    """The decoder of rows with these columns, of which the first `visible` are given out; None: all.

    `images` are bit sets of the columns that an image has, in the order in which images follow each other; none means
    that every image has all. A column that its image lacks is ABSENT, or what the image before it has: an UPDATE's
    second image leaves out what did not change.
    """
    whole = (1 << len(fields)) - 1
    if not any(images or (whole,)):
        return _without_columns
    w = CodeWriter()
    w.put(0, "def decode(b, p, end):")
    w.put(1, "rows = []; add = rows.append")
    w.put(1, "while p < end:")
    for n, image in enumerate(images or (whole,)):
        present = [i for i in range(len(fields)) if image >> i & 1]
        _image(w, fields, present, first=not n, visible=len(fields) if visible is None else visible)
    w.put(1, "if p != end: raise DataOverrun(f'rows end at byte {p}, their event at {end}')")
    w.put(1, "return rows")
    decoder: RowDecoder = w.compiled()
    return decoder


def _without_columns(b: bytes, p: int, end: int) -> list[Row]:
    """Rows of no bytes can't be counted, so none may be left out in silence."""
    raise DataOverrun("its row images have no columns at all")


def make_single(fields: Sequence[Field], image: int) -> SingleDecoder:
    """The decoder of one row image with the columns of the bit set `image`."""
    w = CodeWriter()
    w.put(0, "def decode(b, p, end):")
    w.put(1, "rows = []; add = rows.append")
    w.put(1, "if True:")
    _image(w, fields, [i for i in range(len(fields)) if image >> i & 1], first=True, visible=len(fields))
    w.put(1, "if p > end: raise DataOverrun(f'a row ends at byte {p}, its event at {end}')")
    w.put(1, "return rows[0], p")
    decoder: SingleDecoder = w.compiled()
    return decoder


def make_value(field: Field) -> ValueDecoder:
    """The decoder of one column's value, without any NULL bitmap: the value and where it ends."""
    w = CodeWriter()
    w.put(0, "def decode(b, p, end):")
    w.put(1, "n = 0")
    w.put(1, "if True:")
    w.put(2, "if True:")
    _single(w, 0, 0, field)
    w.put(1, "if p > end: raise DataOverrun(f'a value ends at byte {p}, its event at {end}')")
    w.put(1, "return c0, p")
    decoder: ValueDecoder = w.compiled()
    return decoder


def _image(w: CodeWriter, fields: Sequence[Field], present: Sequence[int], *, first: bool, visible: int) -> None:
    """One pass an image: the NULL bitmap, then, when nothing is NULL (the usual case), runs of fixed fields by one
    unpack each; a row with NULLs goes column by column."""
    null_bytes = (len(present) + 7) // 8
    mask = (1 << len(present)) - 1
    if first and len(present) < len(fields):
        absent = [f"c{i}" for i in range(len(fields)) if i not in set(present)]
        w.put(2, f"{' = '.join(absent)} = {w.bind('ABSENT', ABSENT)}")
    if null_bytes == 1:
        w.put(2, f"n = b[p] & {mask}")
    else:
        w.put(2, f"n = from_bytes(b[p:p + {null_bytes}], 'little') & {mask}")
    w.put(2, f"p += {null_bytes}")
    columns = [(i, fields[i]) for i in present]
    w.put(2, "if not n:")
    _straight(w, columns)
    w.put(2, "else:")
    for bit, (i, field) in enumerate(columns):
        _single(w, bit, i, field)
    if not columns:
        w.put(3, "pass")
    w.put(2, f"add(({''.join(f'c{i}, ' for i in range(visible))}))")


def _value(w: CodeWriter, i: int, field: Field, raw: str) -> str:
    """The expression that makes the value of column i out of `raw`."""
    if field.codec == "utf-8":
        return f"{raw}.decode()"
    if field.codec:
        return f"{raw}.decode({w.bind(f'codec{i}', field.codec)})"
    if field.post is not None:
        return f"{w.bind(f'post{i}', field.post)}({raw})"
    return raw


def _straight(w: CodeWriter, columns: Sequence[tuple[int, Field]]) -> None:
    """Rows without NULL: gather fixed fields, and the length of the variable one that ends them, into one unpack."""
    run: list[tuple[int, Field]] = []
    for i, field in columns:
        run.append((i, field))
        if field.shape == "var":
            _run(w, run)
            run = []
    if run:
        _run(w, run)
    if not columns:
        w.put(3, "pass")


def _run(w: CodeWriter, run: list[tuple[int, Field]]) -> None:
    last_index, last = run[-1]
    packed = struct.Struct("<" + "".join(field.code for _, field in run))
    unpack = w.bind(f"unpack{run[0][0]}", packed.unpack_from)
    w.put(3, f"{''.join(f'c{i}, ' for i, _ in run)} = {unpack}(b, p); p += {packed.size}")
    fixed = run[:-1] if last.shape == "var" else run
    if last.shape == "var":
        _behind_length(w, 3, last_index, last)
    for i, field in fixed:
        if field.post is not None:
            w.put(3, f"c{i} = {_value(w, i, field, f'c{i}')}")


def _behind_length(w: CodeWriter, indent: int, i: int, field: Field) -> None:
    """The value of a variable field, once its length is in the column's variable and `p` behind that."""
    length = f"c{i}" if field.size != 3 else f"from_bytes(c{i}, 'little')"
    w.put(indent, f"q = p + {length}")
    w.put(indent, "if q > end: raise DataOverrun(f'a value ends at byte {q}, its event at {end}')")
    w.put(indent, f"c{i} = {_value(w, i, field, 'b[p:q]')}; p = q")


def _single(w: CodeWriter, bit: int, i: int, field: Field) -> None:
    """One column of a row that has NULLs; `bit` is its place among the columns that the image has."""
    packed = struct.Struct("<" + field.code)
    unpack = w.bind(f"one{i}", packed.unpack_from)
    w.put(3, f"if n & {1 << bit}: c{i} = None")
    w.put(3, "else:")
    w.put(4, f"c{i}, = {unpack}(b, p); p += {packed.size}")
    if field.shape == "var":
        _behind_length(w, 4, i, field)
    elif field.post is not None:
        w.put(4, f"c{i} = {_value(w, i, field, f'c{i}')}")
