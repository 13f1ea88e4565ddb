"""Generates the row decoder of a table layout: straight-line Python over struct runs, no branch a column."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from headrace.model import Row
from headrace.mysql.column_types import Field

RowDecoder = Callable[[bytes, int, int], list[Row]]
"""(bytes, start, end) -> the row images between; raises when they do not end exactly there."""


class _Writer:
    """The generated source and the constants it is bound to. The source holds integers and identifiers made here,
    never a name from the table: strings come in as constants."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"from_bytes": int.from_bytes, "DataOverrun": DataOverrun}

    def bind(self, name: str, value: Any) -> str:
        self.constants[name] = value
        return name

    def put(self, indent: int, line: str) -> None:
        self.lines.append("    " * indent + line)


class DataOverrun(ValueError):
    """The rows do not end where their event does."""


def make_decoder(fields: Sequence[Field]) -> RowDecoder:
    """The decoder of rows that have all these columns. One pass a row: the NULL bitmap, then, when nothing is NULL
    (the usual case), runs of fixed fields by one unpack each; a row with NULLs goes column by column."""
    w = _Writer()
    null_bytes = (len(fields) + 7) // 8
    mask = (1 << len(fields)) - 1
    w.put(0, "def decode(b, p, end):")
    w.put(1, "rows = []; add = rows.append")
    w.put(1, "while p < end:")
    if null_bytes == 1:
        w.put(2, f"n = b[p] & {mask}")
    else:
        w.put(2, f"n = from_bytes(b[p:p + {null_bytes}], 'little') & {mask}")
    w.put(2, f"p += {null_bytes}")
    w.put(2, "if not n:")
    _straight(w, fields)
    w.put(2, "else:")
    for i, field in enumerate(fields):
        _single(w, i, field)
    w.put(2, f"add(({''.join(f'c{i}, ' for i in range(len(fields)))}))")
    w.put(1, "if p != end: raise DataOverrun(f'rows end at byte {p}, their event at {end}')")
    w.put(1, "return rows")
    namespace = dict(w.constants)
    exec(compile("\n".join(w.lines), "<row decoder>", "exec"), namespace)
    decoder: RowDecoder = namespace["decode"]
    return decoder


def _value(w: _Writer, i: int, field: Field, raw: str) -> str:
    """The expression that makes the value of column i out of `raw`."""
    if field.codec == "utf-8":
        return f"{raw}.decode()"
    if field.codec:
        return f"{raw}.decode({w.bind(f'codec{i}', field.codec)})"
    if field.post is not None:
        return f"{w.bind(f'post{i}', field.post)}({raw})"
    return raw


def _straight(w: _Writer, fields: Sequence[Field]) -> None:
    """Rows without NULL: gather fixed fields, and the length of the variable one that ends them, into one unpack."""
    run: list[tuple[int, Field]] = []
    for i, field in enumerate(fields):
        run.append((i, field))
        if field.shape == "var":
            _run(w, run)
            run = []
    if run:
        _run(w, run)
    if not fields:
        w.put(3, "pass")


def _run(w: _Writer, run: list[tuple[int, Field]]) -> None:
    last_index, last = run[-1]
    packed = struct.Struct("<" + "".join(field.code for _, field in run))
    unpack = w.bind(f"unpack{run[0][0]}", packed.unpack_from)
    w.put(3, f"{''.join(f'c{i}, ' for i, _ in run)} = {unpack}(b, p)")
    fixed = run[:-1] if last.shape == "var" else run
    if last.shape == "var":
        length = f"c{last_index}" if last.size != 3 else f"from_bytes(c{last_index}, 'little')"
        w.put(3, f"p += {packed.size}; q = p + {length}")
        w.put(3, "if q > end: raise DataOverrun(f'a value ends at byte {q}, its event at {end}')")
        w.put(3, f"c{last_index} = {_value(w, last_index, last, 'b[p:q]')}; p = q")
    else:
        w.put(3, f"p += {packed.size}")
    for i, field in fixed:
        if field.post is not None:
            w.put(3, f"c{i} = {_value(w, i, field, f'c{i}')}")


def _single(w: _Writer, i: int, field: Field) -> None:
    """One column of a row that has NULLs."""
    packed = struct.Struct("<" + field.code)
    unpack = w.bind(f"one{i}", packed.unpack_from)
    w.put(3, f"if n & {1 << i}: c{i} = None")
    w.put(3, "else:")
    w.put(4, f"c{i}, = {unpack}(b, p); p += {packed.size}")
    if field.shape == "var":
        length = f"c{i}" if field.size != 3 else f"from_bytes(c{i}, 'little')"
        w.put(4, f"q = p + {length}")
        w.put(4, "if q > end: raise DataOverrun(f'a value ends at byte {q}, its event at {end}')")
        w.put(4, f"c{i} = {_value(w, i, field, 'b[p:q]')}; p = q")
    elif field.post is not None:
        w.put(4, f"c{i} = {_value(w, i, field, f'c{i}')}")
