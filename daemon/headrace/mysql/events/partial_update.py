"""PARTIAL_UPDATE_ROWS events: updates whose JSON columns are written as changes of the old document (MySQL's
binlog_row_value_options = PARTIAL_JSON; wire format: Rows_log_event, value options)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from headrace.model import ABSENT, Row
from headrace.mysql.values.column_types import JSON, Field
from headrace.mysql.values.json_diff import apply
from headrace.mysql.values.jsonb import json_text
from headrace.mysql.values.rowcode import make_single, make_value

_LENGTH = struct.Struct("<I").unpack_from
_HAS_PARTIAL_JSON = 1


class MissingBase(ValueError):
    """A document's change came without the old document."""


class PartialUpdates:
    """The decoder of such events for one schema and one pair of column sets; rare, so it goes column by column."""

    def __init__(self, fields: Sequence[Field], kinds: Sequence[int], before: int, after: int) -> None:
        self._documents = [i for i, kind in enumerate(kinds) if kind == JSON]
        raw = [replace(field, post=None) if kinds[i] == JSON else field for i, field in enumerate(fields)]
        self._before = make_single(raw, before)
        self._columns = [i for i in range(len(fields)) if after >> i & 1]
        self._single = {i: make_value(raw[i]) for i in self._columns}

    def __call__(self, data: bytes, at: int, stop: int) -> list[Row]:
        """Returns before and after images in turn. Raises MissingBase, or ValueError and similar errors for invalid
        bytes."""
        rows: list[Row] = []
        while at < stop:
            before, at = self._before(data, at, stop)
            after, at = self._after(before, data, at, stop)
            rows += (self._printed(before), after)
        if at != stop:
            raise ValueError(f"rows end at byte {at}, their event at {stop}")
        return rows

    def _after(self, before: Row, data: bytes, at: int, stop: int) -> tuple[Row, int]:
        options, at = data[at], at + 1
        if options > _HAS_PARTIAL_JSON:
            raise ValueError(f"the value options {options} are not known")
        partial = 0
        if options & _HAS_PARTIAL_JSON:  # a bit for every JSON column of the table, in the image or not
            width = (len(self._documents) + 7) // 8
            partial = int.from_bytes(data[at : at + width], "little")
            at += width
        width = (len(self._columns) + 7) // 8
        nulls = int.from_bytes(data[at : at + width], "little")
        at += width
        values = list(self._printed(before))
        for n, i in enumerate(self._columns):
            if nulls >> n & 1:
                values[i] = None
            elif i in self._documents and partial >> self._documents.index(i) & 1:
                (size,) = _LENGTH(data, at)
                if at + 4 + size > stop:
                    raise ValueError("the change of a document ends beyond its event")
                values[i] = self._changed(before[i], data[at + 4 : at + 4 + size])
                at += 4 + size
            else:
                value, at = self._single[i](data, at, stop)
                values[i] = json_text(value) if i in self._documents else value
        return tuple(values), at

    def _changed(self, base: object, diff: bytes) -> str:
        if not isinstance(base, bytes):
            raise MissingBase("the change of a JSON document came without the document before it")
        return apply(base, diff)

    def _printed(self, row: Row) -> Row:
        """Returns the row with its documents as text."""
        values = list(row)
        for i in self._documents:
            if values[i] is not None and values[i] is not ABSENT:
                values[i] = json_text(values[i])
        return tuple(values)
