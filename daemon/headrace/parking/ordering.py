"""Which messages must wait for others: those about the same row, or about a table as a whole."""

from __future__ import annotations

from collections import Counter

from headrace.model import Unit


class Blocks:
    """A set of messages by what they are about. The order of two messages is kept within one scope: a topic or an
    exchange."""

    def __init__(self) -> None:
        self._keys: Counter[tuple[str, str]] = Counter()
        self._tables: Counter[tuple[str, str]] = Counter()
        """The tables of all messages."""
        self._whole: Counter[tuple[str, str]] = Counter()
        """The tables of messages about tables as a whole."""
        self._count: Counter[str] = Counter()
        self._everything: Counter[str] = Counter()
        """Messages about no table, such as the begin of a transaction: they wait only for each other."""

    def add(self, scope: str, unit: Unit) -> None:
        """Adds one message."""
        self._move(scope, unit, 1)

    def remove(self, scope: str, unit: Unit) -> None:
        """Removes one message that was added."""
        self._move(scope, unit, -1)

    def blocks(self, scope: str, unit: Unit) -> bool:
        """Returns whether a message must wait for one of these."""
        if not self._count[scope]:
            return False
        if not unit.tables:
            return self._everything[scope] > 0
        if any((scope, name) in self._whole for table in unit.tables for name in (table, _database(table))):
            return True
        if unit.keys:
            return any((scope, key) in self._keys for key in unit.keys)
        return any((scope, table) in self._tables for table in unit.tables)

    def _move(self, scope: str, unit: Unit, by: int) -> None:
        self._count[scope] += by
        if not unit.tables:
            self._everything[scope] += by
            return
        for key in unit.keys:
            _add(self._keys, (scope, key), by)
        for table in unit.tables:
            for name in dict.fromkeys((table, _database(table))):
                _add(self._tables, (scope, name), by)
            if not unit.keys:
                _add(self._whole, (scope, table), by)


def _database(table: str) -> str:
    """Returns `schema.*` of `schema.table`."""
    return f"{table.partition('.')[0]}.*"


def _add(counter: Counter[tuple[str, str]], name: tuple[str, str], by: int) -> None:
    counter[name] += by
    if counter[name] <= 0:
        del counter[name]
