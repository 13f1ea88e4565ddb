"""The results of a command `check`: the state of things, and remedies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The state of a thing."""

    OK = "ok"
    WARNING = "warning"
    """It is good enough to run, and could be better, or could not be checked."""
    WRONG = "wrong"
    """A run would not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked. `sql` are complete statements that fix it, in order; `remedy` is what else must be
    done."""

    name: str
    level: Level
    sentence: str
    remedy: str = ""
    sql: tuple[str, ...] = ()

    @property
    def fixes(self) -> str:
        """Returns statements and remedy as one text; "" if nothing must be fixed."""
        return " ".join(filter(None, (*self.sql, self.remedy)))

    def __str__(self) -> str:
        return f"{self.sentence} -> {self.fixes}" if self.fixes else self.sentence


def ok(name: str, sentence: str) -> Finding:
    """Returns the finding for a thing that is right."""
    return Finding(name, Level.OK, sentence)


def warning(name: str, sentence: str, remedy: str = "", sql: tuple[str, ...] = ()) -> Finding:
    """Returns the finding for a thing that could be better."""
    return Finding(name, Level.WARNING, sentence, remedy, sql)


def wrong(name: str, sentence: str, remedy: str = "", sql: tuple[str, ...] = ()) -> Finding:
    """Returns the finding for a thing that prevents a run."""
    return Finding(name, Level.WRONG, sentence, remedy, sql)
