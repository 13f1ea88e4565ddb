"""The base of message formats: rows of one change, or a selection of them, into bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from headrace.model import RowsChange


class Format(ABC):
    """One message format. It may keep what it works out a table layout; it keeps nothing a row."""

    @abstractmethod
    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        """All rows of the change in one message."""

    @abstractmethod
    def encode_each(self, change: RowsChange, now_ms: int) -> list[bytes]:
        """One message a row, in order."""
