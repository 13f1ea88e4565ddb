"""What a property of another system becomes here: the rows of the tables that import goes by and docs/moving.md has."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Read = Callable[[str], Any]
"""Makes a value of TOML out of a property's text. Raises ValueError."""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """One row. `keys` names the keys as the documentation does, "" when there are none; `remark` is what more there is
    to say, or why there are none. With `key` the property becomes this one key, by `read`."""

    keys: str = ""
    remark: str = ""
    key: str = ""
    read: Read = str


Table = Mapping[str, Counterpart]
"""Counterparts by property, in the order of the documentation; a `*` in a name stands for any text."""


def same(key: str, read: Read = str, remark: str = "") -> Counterpart:
    """Returns the row of a property that one key stands for."""
    section, _, name = key.rpartition(".")
    return Counterpart(f"`[{section}] {name}`", remark, key, read)


def several(keys: str, remark: str = "") -> Counterpart:
    """Returns the row of a property that import looks at together with others."""
    return Counterpart(keys, remark)


def none(reason: str) -> Counterpart:
    """Returns the row of a property without counterpart."""
    return Counterpart("", reason)


def find(table: Table, name: str) -> tuple[str, Counterpart] | None:
    """The row of a property, with the name that the table has for it; None when the table has none."""
    if name in table:
        return name, table[name]
    return next(((known, row) for known, row in table.items() if "*" in known and fnmatch.fnmatchcase(name, known)), None)


def rows(table: Table, names: Iterable[str] | None = None) -> str:
    """The table as Markdown."""
    lines = ["| Property | Counterpart | Remark |", "|---|---|---|"]
    for name in names if names is not None else table:
        row = table[name]
        lines.append(f"| `{name}` | {row.keys or 'none'} | {row.remark} |")
    return "\n".join(lines)


# -- values -------------------------------------------------------------------------------------------------------


def flag(text: str) -> bool:
    """A truth value. Raises ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("should be true or false")
    return text.lower() == "true"


def opposite(text: str) -> bool:
    """The contrary of a truth value. Raises ValueError."""
    return not flag(text)


def whole(text: str) -> int:
    """A whole number of 0 or more. Raises ValueError."""
    if not text.isascii() or not text.isdigit():
        raise ValueError("should be a whole number")
    return int(text)


def milliseconds(text: str) -> str:
    """A time as [section] keys write it. Raises ValueError."""
    return f"{whole(text)}ms"


def choice(choices: Mapping[str, Any]) -> Read:
    """Returns a reader of one of several words, whatever the case."""

    def read(text: str) -> Any:
        if text.lower() not in choices:
            raise ValueError(f"should be one of {', '.join(choices)}")
        return choices[text.lower()]

    return read
