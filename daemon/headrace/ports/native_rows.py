"""The base of what makes the messages of rows in native code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model import SnapshotRows, TableSchema


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """What the changes have in common that are made of rows of a snapshot."""

    read: SnapshotRows
    """`id` lacks the number of the change, which comes after a "-"."""
    number: int
    """The number of the last change before."""
    together: int
    """How many rows make one change."""
    file: str
    offset: int
    """Where the stream is."""
    pos: int
    """`_pos` of the first row of each change."""
    commit_time_us: int
    seconds: float
    """How long it may take."""


class NativeRows(ABC):
    """Makes the messages of rows in native code. table() and put_selected() may also be called between two
    calls of ChangeStream.read(), all other methods only from within one."""

    output: Any
    """The object that native code writes to."""
    marks: bool
    """Whether it also makes the messages about the begin and end of transactions."""

    @abstractmethod
    def new_reader(self, passed: bytes, slice_seconds: float) -> Any:
        """Returns a new reader of events. It ignores events with the numbers `passed`, and returns after
        `slice_seconds` at the latest, with whole events."""

    @abstractmethod
    def table(self, schema: TableSchema, layouts: Sequence[tuple[Any, ...] | None]) -> Any | None:
        """Returns the converter of a table's rows, whose columns are laid out in a row image as `layouts` say; None if
        native code can't convert them."""

    @abstractmethod
    def put_selected(
        self, table: Any, data: bytes, at: int, rows: int, left_out: Sequence[int], change: SnapshotChange
    ) -> tuple[int, int, int, int]:
        """Makes the messages of rows of a SELECT's result, of at most `rows` packets from `at` on, without those with
        the numbers `left_out`, which are in order; `table` is what table() has returned for the layouts of the selected
        values. Returns how many rows, these included, and how many changes it made, where the rows end, and where the
        last one begins. If it has read none, Python must read the next row. Raises NotUnderstood for a bug in native
        code."""

    @abstractmethod
    def watched(self) -> frozenset[tuple[str, str]]:
        """Returns the tables whose rows Python must see, by schema and name."""

    @abstractmethod
    def begin(self) -> tuple[int, int]:
        """Prepares for a run of the reader. Returns after how many bytes and messages it must stop."""

    @abstractmethod
    def making(self) -> tuple[int, int, int]:
        """Returns the rows of a message (0: all), the time in milliseconds that the next messages contain, and the
        format's number of the last message."""

    @abstractmethod
    def open(self, slot: int) -> Any:
        """Returns the batch for the messages of a topic's partition. Called while the reader runs."""

    @abstractmethod
    def end(self) -> None:
        """Ends a run of the reader."""
