"""The result of a comparison of an index with its tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace_spark.verify.differences import DOCUMENT, KINDS, ROW, Difference, Place

KEPT = 10_000
"""Maximum differences that are kept."""


@dataclass(slots=True)
class Report:
    """The result for one index. `unsettled` differed in each check, and each time in another way. `refused` rows can't
    be documents. `more` means that there are more differences than are kept, `behind` that the consumer did not catch
    up, `kept_rows` that the index has joins. `absent` is the name of a missing index."""

    index: str
    rows: int = 0
    documents: int = 0
    refused: int = 0
    repaired: int = 0
    unsettled: int = 0
    more: bool = False
    behind: bool = False
    absent: str = ""
    kept_rows: bool = False
    found: dict[tuple[str, Place], Difference] = field(default_factory=dict)

    @property
    def differences(self) -> list[Difference]:
        """Returns the kept ones."""
        return list(self.found.values())

    @property
    def equal(self) -> bool:
        """Returns whether nothing differs, as far as checked."""
        return not (self.found or self.more or self.refused or self.absent)

    def count(self, kind: str, of: str = DOCUMENT) -> int:
        """Returns the number of differences of one kind."""
        return sum((one.of, one.kind) == (of, kind) for one in self.found.values())

    def add(self, differences: Iterable[Difference]) -> None:
        """Adds as many as are kept."""
        for one in differences:
            if len(self.found) >= KEPT:
                self.more = True
                return
            self.found[one.of, one.place] = one

    def page(self) -> dict[str, Any]:
        """Returns the result for --json."""
        made: dict[str, Any] = {
            "index": self.index,
            "equal": self.equal,
            "rows": self.rows,
            "documents": self.documents,
            **{kind: self.count(kind) for kind in KINDS},
        }
        if self.kept_rows:
            made["kept_rows"] = {kind: self.count(kind, ROW) for kind in KINDS}
        return made | {
            "more": self.more,
            "index_is_missing": bool(self.absent),
            "unsettled": self.unsettled,
            "refused_rows": self.refused,
            "repaired": self.repaired,
            "consumer_is_behind": self.behind,
            "differences": [
                {"of": one.of, "kind": one.kind, "id": one.id, "routing": one.routing, "fields": list(one.fields)}
                for one in self.differences
            ],
        }

    def lines(self) -> list[str]:
        """Returns the lines for people, without the differences."""
        if self.absent:
            return [
                f"{self.index}: all documents are missing: its tables have rows, and there is no index {self.absent}; "
                f"fill it with `headrace-spark rebuild --index {self.index}`"
            ]
        counts = ", ".join(f"{self.count(kind)} {kind}" for kind in KINDS)
        made = [f"{self.index}: {self.rows} rows, {self.documents} documents of them; {counts}"]
        if self.kept_rows:
            made.append("  rows that are kept: " + ", ".join(f"{self.count(kind, ROW)} {kind}" for kind in KINDS))
        if self.more:
            made.append("  there are more differences than are counted here")
        for what, number in (
            ("repaired", self.repaired),
            ("unsettled", self.unsettled),
            ("rows that can't be documents", self.refused),
        ):
            if number:
                made.append(f"  {what}: {number}")
        if self.behind:
            made.append("  the consumer did not catch up: what differs may be on its way")
        return made
