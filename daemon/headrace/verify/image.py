"""A consumer's rows of one table: for each key the hash of its row, and the version of its newest change."""

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
    """One integer for each row, version and hash together, so that a row costs no object besides its key and that.

    A deleted row is kept too, because an older change of it may still come from another partition. It counts as a
    row."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rows: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: bytes, hashed: int, version: int | None) -> None:
        """Takes the newest message about a row. A version older than the known one changes nothing; of equal ones the
        later counts, and an unknown one counts as equal. Raises TooManyRows."""
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
        """Removes a row; returns its hash, or GONE, and its version."""
        known = self._rows.pop(key, 0)
        return known & _HASH, known >> _HASH_BITS

    def count(self) -> int:
        """Returns how many rows there are, without deleted ones."""
        return sum(1 for known in self._rows.values() if known & _HASH)

    def drain(self) -> Iterator[tuple[bytes, int, int]]:
        """Removes and yields all remaining rows: key, hash and version; skips deleted ones."""
        rows = self._rows
        while rows:
            key, known = rows.popitem()
            if known & _HASH != GONE:
                yield key, known & _HASH, known >> _HASH_BITS
