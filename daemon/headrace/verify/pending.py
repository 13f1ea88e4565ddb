"""A row that differed at the first pass, until it agrees or counts as a difference."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ports.tables import Key
from headrace.verify.hashes import GONE

ABSENT_FORMS = (GONE,)
"""The form of a row that the source does not have."""


@dataclass(slots=True)
class Pending:
    """A row that differs. `wanted` are the hashes of the source's row, one of which the consumer should have; `held` is
    what it has."""

    wanted: tuple[int, ...]
    held: int
    version: int
    """Version of the consumer's row; older messages about it are ignored."""
    range: int = -1
    number: int = -1
    """The row's index in the order of the key; -1 for one that only the consumer has."""
    raw: Key | None = None
    """The key in the source's form, if it is kept."""
    since: float = 0.0
    """When the consumer last got a message about it, or the row was last read: on a monotonic clock."""
    began: float = 0.0
    """When the row was last read."""
    rounds: int = 0
    """How many times it was read again."""
    touched: bool = False
    """Whether the consumer got a message about it since it was last read."""

    @property
    def extra(self) -> bool:
        """Returns whether only the consumer has it."""
        return self.number < 0

    @property
    def agrees(self) -> bool:
        """Returns whether both sides have the same."""
        return self.held in self.wanted
