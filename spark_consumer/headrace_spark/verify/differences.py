"""How a document differs from what the tables make."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from headrace_documents.elastic.bulk import Swap, encode_swap

DOCUMENT, ROW = "document", "row"
MISSING, DIFFERENT, EXTRA = "missing", "different", "extra"
KINDS = (MISSING, DIFFERENT, EXTRA)
_FIELDS = 20

Place = tuple[str, str]
"""The id and the routing of a document."""


class Difference(NamedTuple):
    """A document that differs from its row, or a row of a join that is not kept correctly. `wanted` is a number for
    what it should be, 0 for nothing. `version` is that of the document, and for a missing one that of its delete; 0 if
    neither is known."""

    of: str
    """document or row."""
    kind: str
    """missing, different or extra."""
    id: str
    routing: str
    fields: tuple[str, ...]
    wanted: int
    version: int

    @property
    def place(self) -> Place:
        """Returns what identifies it within an index."""
        return self.id, self.routing

    def stays(self, before: Difference | None) -> bool:
        """Returns whether it is the same in two checks, so that no write of it is in flight."""
        if before is None or (before.kind, before.wanted) != (self.kind, self.wanted):
            return False
        return self.kind == MISSING or before.version == self.version

    def is_written_as(self, before: Difference | None) -> bool:
        """Returns whether the document is unchanged since the check before, whatever it should be."""
        if before is None or before.kind != self.kind:
            return False
        return self.kind == MISSING or before.version == self.version


Differences = dict[Place, Difference]


class Compared(NamedTuple):
    """The result of a task. `found` are existing documents that belong to a row; `refused` are rows that can't be
    documents; `more` means that there are further differences."""

    rows: int = 0
    found: int = 0
    refused: int = 0
    repaired: int = 0
    more: bool = False
    differences: tuple[Difference, ...] = ()

    def plus(self, other: Compared) -> Compared:
        """Returns the sum of both."""
        return Compared(
            self.rows + other.rows,
            self.found + other.found,
            self.refused + other.refused,
            self.repaired + other.repaired,
            self.more or other.more,
            self.differences + other.differences,
        )

    def bounded(self, most: int) -> Compared:
        """Returns it with at most this many differences."""
        if len(self.differences) <= most:
            return self
        return self._replace(differences=self.differences[:most], more=True)


def as_written(body: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Returns a document as Elasticsearch stores it, and a number for its text."""
    text = encode_swap(Swap({}, dict(body))).split(b"\n", 1)[1]
    made: dict[str, Any] = orjson.loads(text)
    return made, zlib.crc32(text) + 1


def differing_fields(wanted: Mapping[str, Any], has: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of some fields that differ; none if the two are equal."""
    names = sorted(wanted.keys() | has.keys())
    return tuple(name for name in names if not equal(wanted.get(name, ...), has.get(name, ...)))[:_FIELDS]


def equal(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
