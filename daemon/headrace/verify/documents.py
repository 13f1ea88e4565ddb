"""Rows as the consumers' documents: their ids, and the types that values may have there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headrace.model import Column
from headrace.ports.replay import PublishedRow
from headrace.verify.hashes import row_hash

_WHOLE = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit"})
_FLOATS = frozenset({"double", "float"})
KEY = "{key}"


class DocumentNames:
    """How ids are made from keys: `template` is `{key}`, with text before and after it."""

    def __init__(self, template: str) -> None:
        self._before, _, self._behind = template.partition(KEY)

    def id_of(self, key: bytes) -> str:
        """Returns the id of a row's document."""
        return f"{self._before}{key.decode()}{self._behind}"

    def key_of(self, name: str) -> bytes | None:
        """Returns the key of a document's row; None for an id of another form."""
        size = len(self._before) + len(self._behind)
        if len(name) <= size or not name.startswith(self._before) or not name.endswith(self._behind):
            return None
        return name[len(self._before) : len(name) - len(self._behind)].encode()


def document_forms(columns: Sequence[Column]) -> Callable[[PublishedRow], tuple[int, ...]]:
    """Returns a function for the hashes of a row's document under each of the consumers' settings `types` and
    `decimals`: integers and floats as numbers, decimals as text or as numbers, or everything as text."""
    whole = [column.name for column in columns if column.kind in _WHOLE]
    floats = [column.name for column in columns if column.kind in _FLOATS]
    decimals = [column.name for column in columns if column.kind == "decimal"]

    def forms(row: PublishedRow) -> tuple[int, ...]:
        typed = row | {name: _integer(row[name]) for name in whole if name in row}
        typed |= {name: _float(row[name]) for name in floats if name in row}
        found = [row_hash(typed)]
        if decimals:
            found.append(row_hash(typed | {name: _float(row[name]) for name in decimals if name in row}))
        if whole or floats:
            found.append(row_hash(row))
        return tuple(found)

    return forms


def _integer(value: object) -> object:
    try:
        return int(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _float(value: object) -> object:
    """Keeps infinity as a text, because JSON has none."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return number if not isinstance(number, float) or math.isfinite(number) else value
