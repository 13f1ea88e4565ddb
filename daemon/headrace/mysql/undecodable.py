"""Texts with codes that have no Unicode character: how they are published, and how many there were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from headrace.large_values import LargeValue, Note
from headrace.model import TableSchema
from headrace.mysql.values.charsets import codec_of, replaced
from headrace.mysql.values.column_types import Field
from headrace.mysql.values.large import MakeLarge

_KEPT = 1_000
"""Columns that are counted by name."""


class ReplacedText(str):
    """A text with `?` for codes that have no Unicode character. Two are equal only if their bytes are, so that keys
    which look alike stay different."""

    __slots__ = ("raw",)
    raw: bytes

    @classmethod
    def of(cls, text: str, raw: bytes) -> ReplacedText:
        """Returns the text of these bytes."""
        made = cls(text)
        made.raw = raw
        return made

    def __eq__(self, other: object) -> bool:
        return type(other) is ReplacedText and other.raw == self.raw

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"ReplacedText({str.__repr__(self)}, {self.raw!r})"


class Undecodable(ValueError):
    """A text has codes that have no Unicode character, and must not be published. `remedy` says what an operator can
    do."""

    def __init__(self, text: str, *, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = f"{remedy}leave the column out by [filter] exclude_columns, or such rows by table_errors = 'skip'"


class UndecodableTexts:
    """Decodes such texts as SELECT prints them, with `?` for each of these codes, and counts them in `counts`, by
    schema, table and column. With `stop`, and for bytes that are no code at all, it raises Undecodable instead, unless
    `published` says that the column is not published."""

    def __init__(self, *, stop: bool = False, published: Callable[[str, str, str], bool] = lambda *_: True) -> None:
        self._stop, self._published = stop, published
        self.counts: dict[tuple[str, str, str], int] = {}

    def fields(self, schema: TableSchema, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Returns the fields of a table that decode every text. Those after the schema's columns are hidden ones."""
        hidden = len(fields) - len(schema.columns)
        notes = [*(self.note(schema, i) for i in range(len(schema.columns))), *[_nothing] * hidden]
        return tuple(
            self._field(field, note) if field.charset else field for field, note in zip(fields, notes, strict=True)
        )

    def _field(self, field: Field, note: Note) -> Field:
        unpack, text = field.unpack, self.text(field.charset, note)
        post = text if unpack is None else (lambda raw: text(unpack(raw)))
        large = noted(field.large, note) if field.large is not None else None
        return replace(field, codec="", post=post, large=large)

    def text(self, charset: str, note: Note) -> Callable[[bytes], str]:
        """Returns the decoder of a column's texts."""
        decode = codec_of(charset).decode

        def decoded(raw: bytes) -> str:
            try:
                return decode(raw)
            except UnicodeDecodeError:
                text, well_formed = replaced(raw, charset)
                note(well_formed)
                return ReplacedText.of(text, raw)

        return decoded

    def note(self, schema: TableSchema, number: int) -> Note:
        """Returns a function to call for each such text of a column. Raises Undecodable."""
        name = schema.schema, schema.table, schema.columns[number].name
        if number not in schema.keys and not self._published(*name):
            return _nothing
        return partial(self._note, name)

    def _note(self, name: tuple[str, str, str], well_formed: bool) -> None:
        if not well_formed:
            raise Undecodable(f"a text in column `{name[2]}` has bytes that are no character of its character set")
        if self._stop:
            what = f"a text in column `{name[2]}` has codes that have no Unicode character"
            raise Undecodable(what, remedy='[source] undecodable_text = "replace", or ')
        if name in self.counts or len(self.counts) < _KEPT:
            self.counts[name] = self.counts.get(name, 0) + 1


def noted(make: MakeLarge, note: Note) -> MakeLarge:
    """Returns a function that makes the same large values, and calls `note` for each that turns out to be such a
    text."""

    def large(b: bytes, start: int, end: int, least: int) -> LargeValue | None:
        value = make(b, start, end, least)
        if value is not None:
            value.replaced = note
        return value

    return large


def _nothing(well_formed: bool) -> None:
    """Does nothing: the column is not published."""
