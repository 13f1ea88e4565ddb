"""What a command `check` finds: how a thing is, and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARNING = "warning"
    """It is well enough to run, and could be better, or could not be looked at."""
    WRONG = "wrong"
    """A run would not do its work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `sql` are complete statements that mend it, in their order; `remedy` says what else
    there is to do."""

    name: str
    level: Level
    sentence: str
    remedy: str = ""
    sql: tuple[str, ...] = ()

    @property
    def mends(self) -> str:
        """Statements and remedy as one text; "" where nothing has to be mended."""
        return " ".join(filter(None, (*self.sql, self.remedy)))

    def __str__(self) -> str:
        return f"{self.sentence} -> {self.mends}" if self.mends else self.sentence


def ok(name: str, sentence: str) -> Finding:
    """Returns a thing that is well."""
    return Finding(name, Level.OK, sentence)


def warning(name: str, sentence: str, remedy: str = "", sql: tuple[str, ...] = ()) -> Finding:
    """Returns a thing that could be better."""
    return Finding(name, Level.WARNING, sentence, remedy, sql)


def wrong(name: str, sentence: str, remedy: str = "", sql: tuple[str, ...] = ()) -> Finding:
    """Returns a thing that stands in the way of a run."""
    return Finding(name, Level.WRONG, sentence, remedy, sql)
