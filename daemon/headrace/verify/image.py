"""What a consumer has of one table: for each key the hash of its row, and the version of its newest change."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import Refusal
from headrace.verify.hashes import GONE

_HASH_BITS = 64
_HASH = (1 << _HASH_BITS) - 1


class TooManyRows(Refusal):
    """There are more rows than may be kept."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(
            f"{what} more than {limit:,} rows, deleted ones included: that is --max-rows",
            remedy="give a larger --max-rows where there is memory for it, about 200 bytes a row and its key: see "
            "docs/verify.md#memory-and-speed",
        )


class Image:
    """One whole number a row, version and hash together, so that a row costs no object besides its key and that.

    A deleted row is kept as well: from another partition an older change of it may still come. It counts as a row.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: bytes, hashed: int, version: int | None) -> None:
        """Takes the newest word about a row. An older version than the one known changes nothing; of equal ones the
        later counts, and one that is not known counts as equal. Raises TooManyRows."""
        known = self._rows.get(key)
        if known is None:
            if len(self._rows) >= self._limit:
                raise TooManyRows("the consumer has", self._limit)
            known = 0
        before = known >> _HASH_BITS
        if version is None:
            version = before
        if version >= before:
            self._rows[key] = version << _HASH_BITS | hashed

    def pop(self, key: bytes) -> tuple[int, int]:
        """Takes a row out: its hash, or GONE, and its version."""
        known = self._rows.pop(key, 0)
        return known & _HASH, known >> _HASH_BITS

    def count(self) -> int:
        """How many rows are there, deleted ones left out."""
        return sum(1 for known in self._rows.values() if known & _HASH)

    def drain(self) -> Iterator[tuple[bytes, int, int]]:
        """Takes all rows out that are left: key, hash and version. Deleted ones are passed over."""
        rows = self._rows
        while rows:
            key, known = rows.popitem()
            if known & _HASH != GONE:
                yield key, known & _HASH, known >> _HASH_BITS
