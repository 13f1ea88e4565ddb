"""What `headrace check` finds of a source, a sink, a store or a rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.errors import HeadraceError, guided


class Level(StrEnum):
    """How a thing is."""

    OK = "ok"
    WARNING = "warning"
    """It is well enough to stream, and could be better, or could not be looked at."""
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
    """A thing that is well."""
    return Finding(name, Level.OK, sentence)


def warning(name: str, sentence: str, remedy: str = "", sql: tuple[str, ...] = ()) -> Finding:
    """A thing that could be better."""
    return Finding(name, Level.WARNING, sentence, remedy, sql)


def wrong(name: str, sentence: str, remedy: str = "", sql: tuple[str, ...] = ()) -> Finding:
    """A thing that stands in the way of a run."""
    return Finding(name, Level.WRONG, sentence, remedy, sql)


def failed(name: str, error: HeadraceError) -> Finding:
    """A look that ended in an error."""
    return wrong(name, str(error.args[0]), guided(error.remedy, error.section or error.reason))


def problem(name: str, text: str) -> Finding:
    """A thing that is wrong by a text of an error: behind an arrow stands what mends it."""
    sentence, _, remedy = text.partition(" -> ")
    return wrong(name, sentence, remedy)
