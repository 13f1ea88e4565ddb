"""The result of a comparison: for a table, and for each range of its keys that differs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SHOWN = 5
"""Keys that are named as examples."""


@dataclass(slots=True)
class RangeFound:
    """Consecutive rows in the order of the key, some of which are different or missing at the consumer."""

    first: str
    last: str
    """Keys of the first and the last row, as published."""
    rows: int
    missing: int = 0
    """Rows that the consumer does not have."""
    different: int = 0
    incomplete: int = 0
    """Rows for which the consumer's last message lacks columns."""
    keys: list[str] = field(default_factory=list)
    """Keys of some of them."""
    where: str = ""
    """A condition in SQL that they meet; "" if it would show what is masked."""
    command: str = ""
    """The command that publishes them again."""


@dataclass(slots=True)
class TableFound:
    """One table compared."""

    table: str
    source_rows: int = 0
    """Rows of the source, without filtered ones."""
    consumer_rows: int = 0
    """Rows that the consumer had when the comparison began."""
    rechecked: int = 0
    """Rows that differed at the first pass."""
    ranges: list[RangeFound] = field(default_factory=list)
    extra: int = 0
    """Rows that only the consumer has."""
    extra_keys: list[str] = field(default_factory=list)
    """Keys of all of them."""
    keyless_differs: bool = False
    """For a table without a key: whether count or checksum differ."""
    notes: list[str] = field(default_factory=list)
    unreadable: str = ""
    """Why the table could not be compared, and the remedy."""

    @property
    def equal(self) -> bool:
        """Returns whether the consumer has exactly the table's rows."""
        return not (self.ranges or self.extra or self.keyless_differs or self.unreadable)

    @property
    def missing(self) -> int:
        return sum(one.missing for one in self.ranges)

    @property
    def different(self) -> int:
        return sum(one.different for one in self.ranges)

    @property
    def incomplete(self) -> int:
        return sum(one.incomplete for one in self.ranges)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON types only."""
        sums = {"missing": self.missing, "different": self.different, "incomplete": self.incomplete}
        raw = asdict(self)
        return {"table": raw.pop("table"), "equal": self.equal, **sums, **raw}
