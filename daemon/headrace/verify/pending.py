"""A row that differed at the first look, until it agrees or counts as a difference."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ports.tables import Key
from headrace.verify.hashes import GONE

ABSENT_FORMS = (GONE,)
"""What a consumer has of a row that the source does not have."""


@dataclass(slots=True)
class Pending:
    """`wanted` are the hashes of the source's row, of which the consumer should have one; `held` is what it has."""

    wanted: tuple[int, ...]
    held: int
    version: int
    """Of what the consumer has; older news of it mean nothing."""
    range: int = -1
    number: int = -1
    """The row's place in the order of the key; -1 for one that only the consumer has."""
    raw: Key | None = None
    """As the source writes it down, where it is kept."""
    since: float = 0.0
    """When the consumer got something of it last, or the row was read last: on a clock that only grows."""
    began: float = 0.0
    """When the row was read last."""
    rounds: int = 0
    """How often it was read again."""
    touched: bool = False
    """Whether the consumer got something of it since it was read last."""

    @property
    def extra(self) -> bool:
        """Whether only the consumer has it."""
        return self.number < 0

    @property
    def agrees(self) -> bool:
        """Whether both sides have the same."""
        return self.held in self.wanted
