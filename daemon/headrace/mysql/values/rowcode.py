"""Generates the row decoder of a table schema: straight-line Python over struct runs, without a branch for each
column."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headrace.model import ABSENT, Row
from headrace.mysql.values.codewriter import CodeWriter, DataOverrun
from headrace.mysql.values.column_types import Field
from headrace.mysql.values.large import least_of

RowDecoder = Callable[[bytes, int, int], list[Row]]
"""(bytes, start, end) -> the row images between; raises if they do not end exactly there."""
SingleDecoder = Callable[[bytes, int, int], tuple[Row, int]]
"""(bytes, start, end) -> one row image and where it ends."""
StepDecoder = Callable[[bytes, int, int], tuple[list[Row], int]]
"""(bytes, start, end) -> the images of one row and where they end."""
ValueDecoder = Callable[[bytes, int, int], tuple[Any, int]]
"""(bytes, start, end) -> one value and where it ends."""
_DECODERS = 1_000
"""Decoders of each kind that are kept for other tables with the same columns."""


def make_decoder(fields: Sequence[Field], *images: int, visible: int | None = None) -> RowDecoder:
    """Returns the decoder of rows with these columns, of which the first `visible` are given out; None: all.

    `images` are bit sets of the columns that an image has, in the order in which images follow each other; none means
    that every image has all. A column that its image lacks is ABSENT, or the value of the image before it: an UPDATE's
    second image omits what did not change. If it has the same bytes as the first, it gets the same object: making it
    again, above all a JSON document, would cost more than the rest of the row. Tables with the same columns share a
    decoder."""
    return _decoder(tuple(fields), images, visible)


@lru_cache(maxsize=_DECODERS)
def _decoder(fields: tuple[Field, ...], images: tuple[int, ...], visible: int | None) -> RowDecoder:
    whole = (1 << len(fields)) - 1
    if images == (0,):
        return _row_without_columns(len(fields) if visible is None else visible)
    if not any(images or (whole,)):
        return _without_columns
    w = CodeWriter()
    w.put(0, "def decode(b, p, end):")
    w.put(1, "rows = []; add = rows.append")
    w.put(1, "while p < end:")
    _images(w, fields, images or (whole,), visible, apart=False)
    w.put(1, "if p != end: raise DataOverrun(f'rows end at byte {p}, their event at {end}')")
    w.put(1, "return rows")
    decoder: RowDecoder = w.compiled()
    return decoder


def make_step(fields: Sequence[Field], *images: int, visible: int | None = None) -> StepDecoder:
    """Does what make_decoder() does for one row at a time, and with large values as LargeValue."""
    return _step_decoder(tuple(fields), images, visible)


@lru_cache(maxsize=_DECODERS)
def _step_decoder(fields: tuple[Field, ...], images: tuple[int, ...], visible: int | None) -> StepDecoder:
    whole = (1 << len(fields)) - 1
    if not any(images or (whole,)):
        return _without_columns  # type: ignore[return-value]  # it only raises
    w = CodeWriter()
    w.put(0, "def decode(b, p, end):")
    w.put(1, f"rows = []; add = rows.append; least = {w.bind('least_of', least_of)}(end - p)")
    w.put(1, "while True:")
    _images(w, fields, images or (whole,), visible, apart=True)
    w.put(2, "if p > end: raise DataOverrun(f'rows end at byte {p}, their event at {end}')")
    w.put(2, "return rows, p")
    w.put(1, "return rows, p")
    decoder: StepDecoder = w.compiled()
    return decoder


def _images(w: CodeWriter, fields: Sequence[Field], sets: Sequence[int], visible: int | None, *, apart: bool) -> None:
    """Writes the images of one row, in the body of a loop."""
    both = _made(fields, sets[0] & sets[-1]) if len(sets) > 1 else frozenset[int]()
    for n, image in enumerate(sets):
        if n:
            w.put(2, "if p >= end: break")  # the caller notices that the last one lacks its second image
        present = [i for i in range(len(fields)) if image >> i & 1]
        shown = len(fields) if visible is None else visible
        keeps, shares = (frozenset[int](), both) if n else (both, frozenset[int]())
        _image(w, fields, present, _Image(shown, keeps=keeps, shares=shares, large=apart), first=not n)


@dataclass(frozen=True, slots=True)
class _Image:
    """One row image of several that follow each other. `keeps`: the columns whose bytes stay in r0, r1 ... for the next
    image. `shares`: those whose bytes the previous image has left there, and their values in c0, c1 ..."""

    visible: int
    keeps: frozenset[int] = frozenset()
    shares: frozenset[int] = frozenset()
    large: bool = False
    """Whether large values become LargeValue; otherwise one whose size only its own bytes show raises NeedsSlices."""

    def raw(self, i: int) -> str:
        """Returns the variable that a fixed field's bytes are read into."""
        return f"r{i}" if i in self.keeps else f"x{i}" if i in self.shares else f"c{i}"


_ALONE = _Image(0)


def _made(fields: Sequence[Field], image: int) -> frozenset[int]:
    """Returns the columns of an image whose values are made from their bytes. Not FLOAT: its -0 and 0 are equal once
    they are read."""
    return frozenset(
        i for i, one in enumerate(fields) if image >> i & 1 and (one.codec or one.post is not None) and one.code != "f"
    )


def _row_without_columns(visible: int) -> RowDecoder:
    """Returns the decoder for INSERT ... VALUES () with binlog_row_image=MINIMAL, in a table without a primary key.
    MySQL refuses to write more than one such row in a statement (error 1534), so the event has one."""

    def decode(b: bytes, p: int, end: int) -> list[Row]:
        if p != end:
            raise DataOverrun(f"a row without columns ends at byte {p}, its event at {end}")
        return [(ABSENT,) * visible]

    return decode


def _without_columns(b: bytes, p: int, end: int) -> list[Row]:
    """Refuses rows of no bytes: they can't be counted, so none may be silently omitted."""
    raise DataOverrun("its row images have no columns at all")


def make_single(fields: Sequence[Field], image: int) -> SingleDecoder:
    """Returns the decoder of one row image with the columns of the bit set `image`."""
    w = CodeWriter()
    w.put(0, "def decode(b, p, end):")
    w.put(1, "rows = []; add = rows.append")
    w.put(1, "if True:")
    _image(w, fields, [i for i in range(len(fields)) if image >> i & 1], _Image(len(fields)), first=True)
    w.put(1, "if p > end: raise DataOverrun(f'a row ends at byte {p}, its event at {end}')")
    w.put(1, "return rows[0], p")
    decoder: SingleDecoder = w.compiled()
    return decoder


def make_value(field: Field) -> ValueDecoder:
    """Returns the decoder of one column's value, without any NULL bitmap: the value and where it ends."""
    w = CodeWriter()
    w.put(0, "def decode(b, p, end):")
    w.put(1, "n = 0")
    w.put(1, "if True:")
    w.put(2, "if True:")
    _single(w, 0, 0, field, _ALONE)
    w.put(1, "if p > end: raise DataOverrun(f'a value ends at byte {p}, its event at {end}')")
    w.put(1, "return c0, p")
    decoder: ValueDecoder = w.compiled()
    return decoder


def _image(w: CodeWriter, fields: Sequence[Field], present: Sequence[int], part: _Image, *, first: bool) -> None:
    """Writes one pass for an image: the NULL bitmap, then, if nothing is NULL (the usual case), runs of fixed fields by
    one unpack each; a row with NULLs goes column by column."""
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
    _straight(w, columns, part)
    w.put(2, "else:")
    for bit, (i, field) in enumerate(columns):
        _single(w, bit, i, field, part)
    if not columns:
        w.put(3, "pass")
    w.put(2, f"add(({''.join(f'c{i}, ' for i in range(part.visible))}))")


def _value(w: CodeWriter, i: int, field: Field, raw: str) -> str:
    """Returns the expression that makes the value of column i from `raw`."""
    if field.codec == "utf-8":
        return f"{raw}.decode()"
    if field.codec:
        return f"{raw}.decode({w.bind(f'codec{i}', field.codec)})"
    if field.post is not None:
        return f"{w.bind(f'post{i}', field.post)}({raw})"
    return raw


def _make(w: CodeWriter, indent: int, i: int, field: Field, raw: str, part: _Image) -> None:
    """Writes the value of column i from the bytes `raw`."""
    if i in part.keeps and raw != f"r{i}":
        w.put(indent, f"r{i} = {raw}")
        raw = f"r{i}"
    if i not in part.shares:
        w.put(indent, f"c{i} = {_value(w, i, field, raw)}")
        return
    if raw != f"x{i}":
        w.put(indent, f"x{i} = {raw}")
    w.put(indent, f"if x{i} != r{i}: c{i} = {_value(w, i, field, f'x{i}')}")


def _straight(w: CodeWriter, columns: Sequence[tuple[int, Field]], part: _Image) -> None:
    """Writes rows without NULL: fixed fields, and the length of the variable one that ends them, are read by one
    unpack."""
    run: list[tuple[int, Field]] = []
    for i, field in columns:
        run.append((i, field))
        if field.shape == "var":
            _run(w, run, part)
            run = []
    if run:
        _run(w, run, part)
    if not columns:
        w.put(3, "pass")


def _run(w: CodeWriter, run: list[tuple[int, Field]], part: _Image) -> None:
    last_index, last = run[-1]
    packed = struct.Struct("<" + "".join(field.code for _, field in run))
    unpack = w.bind(f"unpack{run[0][0]}", packed.unpack_from)
    names = [_name(i, field, part) for i, field in run]
    w.put(3, f"{''.join(f'{name}, ' for name in names)} = {unpack}(b, p); p += {packed.size}")
    fixed = run[:-1] if last.shape == "var" else run
    if last.shape == "var":
        _behind_length(w, 3, last_index, last, part)
    for i, field in fixed:
        if field.post is not None:
            _make(w, 3, i, field, part.raw(i), part)


def _name(i: int, field: Field, part: _Image) -> str:
    """Returns the variable for a column's bytes, or for their number."""
    return "size" if field.shape == "var" else part.raw(i)


def _behind_length(w: CodeWriter, indent: int, i: int, field: Field, part: _Image) -> None:
    """Writes the value of a variable field, once its length has been read and `p` is after it."""
    length = "size" if field.size != 3 else "from_bytes(size, 'little')"
    w.put(indent, f"q = p + {length}")
    w.put(indent, "if q > end: raise DataOverrun(f'a value ends at byte {q}, its event at {end}')")
    if field.large is None or not part.large:
        _make(w, indent, i, field, "b[p:q]", part)
    else:
        w.put(indent, f"large = {w.bind(f'large{i}', field.large)}(b, p, q, least)")
        w.put(indent, "if large is None:")
        _make(w, indent + 1, i, field, "b[p:q]", part)
        w.put(indent, f"else: c{i} = large{f'; r{i} = None' if i in part.keeps else ''}")
    w.put(indent, "p = q")


def _single(w: CodeWriter, bit: int, i: int, field: Field, part: _Image) -> None:
    """Writes one column of a row that has NULLs; `bit` is its index among the columns that the image has."""
    packed = struct.Struct("<" + field.code)
    unpack = w.bind(f"one{i}", packed.unpack_from)
    w.put(3, f"if n & {1 << bit}: c{i} = {f'r{i} = ' if i in part.keeps else ''}None")
    w.put(3, "else:")
    w.put(4, f"{_name(i, field, part)}, = {unpack}(b, p); p += {packed.size}")
    if field.shape == "var":
        _behind_length(w, 4, i, field, part)
    elif field.post is not None:
        _make(w, 4, i, field, part.raw(i), part)
