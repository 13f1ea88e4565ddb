"""Counterparts of another system's properties: the rows of the tables of import and of docs/moving-properties.md."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.moving.properties import Property

Read = Callable[[str], Any]
"""Makes a TOML value from a property's text. Raises ValueError."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """One row. `keys` names the keys as the documentation does, "" if there are none; `remark` has further information,
    or why there are none. With `key` the property becomes this one key, by `read`."""

    keys: str = ""
    remark: str = ""
    key: str = ""
    read: Read = str


Table = Mapping[str, Counterpart]
"""Counterparts by property, in the order of the documentation; a `*` in a name matches any text."""


def same(key: str, read: Read = str, remark: str = "") -> Counterpart:
    """Returns the row of a property that corresponds to one key."""
    section, _, name = key.rpartition(".")
    return Counterpart(f"`[{section}] {name}`", remark, key, read)


def several(keys: str, remark: str = "") -> Counterpart:
    """Returns the row of a property that import reads together with others."""
    return Counterpart(keys, remark)


def none(reason: str) -> Counterpart:
    """Returns the row of a property without counterpart."""
    return Counterpart("", reason)


def instead(keys: str) -> Counterpart:
    """Returns the row of a property that is not converted, because its value has no meaning for the corresponding
    key."""
    return Counterpart("", f"not carried over; {keys} serves for it")


def find(table: Table, name: str) -> tuple[str, Counterpart] | None:
    """Returns the row of a property, with its name in the table; None if the table has none."""
    if name in table:
        return name, table[name]
    return next(
        ((known, row) for known, row in table.items() if "*" in known and fnmatch.fnmatchcase(name, known)), None
    )


def notes_of(table: Table, given: Iterable[Property], taken: Collection[str]) -> list[str]:
    """Returns sentences about given properties that were not converted: those without counterpart by their reason, and
    the others that were not taken. No value is shown: it may be a secret."""
    reasons, unused = dict[str, list[str]](), list[str]()
    for one in given:
        row = find(table, one.name)
        if one.name in taken:
            continue
        if row is not None and row[1].keys:
            unused.append(one.name)
        elif one.value:
            reasons.setdefault(row[1].remark if row is not None else "is not known", []).append(one.name)
    notes = [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return [*notes, f"{', '.join(unused)}: empty, or of no use here"] if unused else notes


def said(table: Table) -> dict[str, list[str]]:
    """Returns the texts of the documentation, each with its properties."""
    found = dict[str, list[str]]()
    for name, row in table.items():
        text = "; ".join(filter(None, (row.keys, row.remark))) if row.keys else f"none: {row.remark}"
        found.setdefault(text, []).append(name)
    return found


# -- values -------------------------------------------------------------------------------------------------------


def flag(text: str) -> bool:
    """Reads a truth value. Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("should be true or false")
    return text.lower() == "true"


def opposite(text: str) -> bool:
    """Reads the negation of a truth value. Raises ValueError."""
    return not flag(text)


def whole(text: str) -> int:
    """Reads an integer of 0 or more. Raises ValueError."""
    if not text.isascii() or not text.isdigit():
        raise ValueError("should be a whole number")
    return int(text)


def milliseconds(text: str) -> str:
    """Reads a time, in the form of [section] keys. Raises ValueError."""
    return f"{whole(text)}ms"


def choice(choices: Mapping[str, Any]) -> Read:
    """Returns a reader of one of several words, in any case."""

    def read(text: str) -> Any:
        if text.lower() not in choices:
            raise ValueError(f"should be one of {', '.join(choices)}")
        return choices[text.lower()]

    return read
