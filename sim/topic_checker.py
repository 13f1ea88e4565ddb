"""The checker: one topic against what the source's binlog says was committed, and against the tables at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

SHOWN = 8
"""Violations of one kind that are kept as text; all are counted."""

Table = dict[str, dict[str, Any]]
"""A table's rows by the text of `id`."""


@dataclass(frozen=True, slots=True)
class Committed:
    """One rows event of the source's binlog, in its order. `id` is what headrace-id begins with: GTID#number."""

    id: str
    rows: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the topic. `size` are the bytes of value, key and headers."""

    partition: int
    offset: int
    headers: dict[str, bytes]
    value: bytes
    size: int


@dataclass
class Findings:
    """What was measured in one topic, and what is wrong with it."""

    delivery: str
    bound: int
    """Bytes of an old epoch that may stand behind the first message of a newer one."""
    committed: int = 0
    """Changed rows that the source's binlog holds."""
    messages: int = 0
    rows: int = 0
    duplicates: int = 0
    escaped_messages: int = 0
    """Of an old epoch, behind the first of a newer one."""
    escaped_bytes: int = 0
    """The most that escaped of any one epoch."""
    epochs: set[int] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    """Violations by kind."""
    texts: list[str] = field(default_factory=list)
    """The first ones of each kind, with offsets."""

    @property
    def sound(self) -> bool:
        return not self.counts

    def violation(self, kind: str, text: str) -> None:
        self.counts[kind] = count = self.counts.get(kind, 0) + 1
        if count <= SHOWN:
            self.texts.append(f"{kind}: {text}")


@dataclass(slots=True)
class _First:
    """The first record with an id: the ones that come again have to be the same."""

    offset: int
    pos: int
    content: int
    current: bool
    """Whether one with this id was not of an old epoch behind a newer one."""


class TopicChecker:
    """Takes the records of one topic in the order of their offsets, partition by partition or mixed.

    The kinds of violations:
      missing     a committed change has no message, or only one of an old epoch behind a newer one
      ghost       a message of nothing that was committed
      reordered   with old epochs and duplicates taken out, a message stands behind a later change's
      numbers     the same for `_pos`, which has to grow with each change
      altered     a duplicate that differs from the first
      duplicate   exactly once only: the same change twice
      escaped     more bytes of an old epoch behind the first message of a newer one than the bound
      epochless   no header that names the epoch
      table       the table that the messages make, by order or by `_pos` for each key, is not the real one
    """

    def __init__(
        self, committed: Iterable[Committed], rows_per_message: int, delivery: str, bound: int, *, epochs: bool = True
    ) -> None:
        self.findings = Findings(delivery, bound)
        self._exactly_once, self._want_epochs = delivery == "exactly_once", epochs
        ids = (id_ for event in committed for id_ in message_ids(event, rows_per_message))
        self._rank = {id_: rank for rank, id_ in enumerate(ids)}
        self._last = next(reversed(self._rank), "")
        self._first: dict[str, _First] = {}
        self._newest: dict[int, tuple[int, int]] = {}
        """By partition the highest epoch so far, and where it began."""
        self._reached: dict[int, tuple[int, int, int]] = {}
        """By partition the highest rank and `_pos` so far, and where."""
        self._escaped: dict[tuple[int, int], int] = {}
        self._ordered: dict[str, Table] = {}
        self._by_pos: dict[tuple[str, str], tuple[int, dict[str, Any] | None]] = {}

    @property
    def complete(self) -> bool:
        """Whether the last committed change has come, by a message that counts."""
        return self._last in self._first and self._first[self._last].current

    def feed(self, record: Record) -> None:
        """One more record; those that are no changes of rows are passed over."""
        message = orjson.loads(record.value)
        if message["isDdl"] or message["data"] is None:
            return
        found = self.findings
        found.messages += 1
        found.rows += len(message["data"])
        id_, pos = record.headers["headrace-id"].decode(), int(record.headers["headrace-pos"])
        current = self._judge_epoch(record)
        content = hash((message["type"], orjson.dumps((message["data"], message["old"]))))
        first = self._first.get(id_)
        if first is None:
            self._first[id_] = _First(record.offset, pos, content, current)
        else:
            self._judge_again(id_, first, record, pos, content)
        if id_ not in self._rank:
            found.violation("ghost", f"offset {record.offset}: {id_} was never committed")
        elif current and (first is None or not first.current):
            self._judge_order(id_, record, pos)
            self._apply(message)
            self._first[id_].current = True
        self._note_rows(message, pos)

    def finish(self, tables: dict[str, Table]) -> Findings:
        """The verdict, once all was fed; `tables` are the source's at the end, by name."""
        found = self.findings
        for id_ in self._rank:
            first = self._first.get(id_)
            if first is None:
                found.violation("missing", f"{id_} has no message")
            elif not first.current:
                found.violation("missing", f"{id_} has only a message of an old epoch, at offset {first.offset}")
        for (partition, epoch), size in self._escaped.items():
            if size > found.bound:
                limit = f"{found.bound} may"
                found.violation("escaped", f"partition {partition}: {size} bytes of epoch {epoch} came late, {limit}")
        replayed: dict[str, Table] = {}
        for (table, key), (_, row) in self._by_pos.items():
            if row is not None:
                replayed.setdefault(table, {})[key] = row
        for name, real in tables.items():
            self._compare(name, real, self._ordered.get(name, {}), "in order")
            self._compare(name, real, replayed.get(name, {}), "by _pos")
        return found

    # -- one record -----------------------------------------------------------------------------------------------

    def _judge_epoch(self, record: Record) -> bool:
        """Whether the message counts: it is not of an older epoch than one before it in the partition."""
        found, partition = self.findings, record.partition
        if "headrace-epoch" not in record.headers:
            if self._want_epochs:
                found.violation("epochless", f"offset {record.offset} has no header headrace-epoch")
            return True
        epoch = int(record.headers["headrace-epoch"])
        found.epochs.add(epoch)
        newest, _ = self._newest.get(partition, (0, 0))
        if epoch >= newest:
            if epoch > newest:
                self._newest[partition] = epoch, record.offset
            return True
        found.escaped_messages += 1
        key = partition, epoch
        self._escaped[key] = self._escaped.get(key, 0) + record.size
        found.escaped_bytes = max(found.escaped_bytes, self._escaped[key])
        return False

    def _judge_again(self, id_: str, first: _First, record: Record, pos: int, content: int) -> None:
        found = self.findings
        found.duplicates += 1
        where = f"offsets {first.offset} and {record.offset}: {id_}"
        if (first.pos, first.content) != (pos, content):
            found.violation("altered", f"{where} differ, _pos {first.pos} and {pos}")
        if self._exactly_once:
            epoch = record.headers.get("headrace-epoch", b"?").decode()
            found.violation("duplicate", f"{where}, the second of epoch {epoch}")

    def _judge_order(self, id_: str, record: Record, pos: int) -> None:
        found, rank = self.findings, self._rank[id_]
        last_rank, last_pos, where = self._reached.get(record.partition, (-1, -1, -1))
        if rank < last_rank:
            found.violation("reordered", f"offset {record.offset}: {id_} stands behind a later change at {where}")
        elif pos <= last_pos:
            found.violation("numbers", f"offset {record.offset}: _pos {pos} is not above {last_pos} at {where}")
        else:
            self._reached[record.partition] = rank, pos, record.offset

    # -- tables ---------------------------------------------------------------------------------------------------

    def _apply(self, message: dict[str, Any]) -> None:
        table = self._ordered.setdefault(message["table"], {})
        for row, old in _rows(message):
            if message["type"] == "DELETE":
                table.pop(row["id"], None)
                continue
            if "id" in old:
                table.pop(old["id"], None)
            table[row["id"]] = row

    def _note_rows(self, message: dict[str, Any], pos: int) -> None:
        """What a consumer does that knows nothing of epochs and duplicates: the highest `_pos` of a key wins."""
        for i, (row, old) in enumerate(_rows(message)):
            deleted = message["type"] == "DELETE"
            changes = [(old["id"], None)] if "id" in old else []
            for key, value in [*changes, (row["id"], None if deleted else row)]:
                place = message["table"], key
                if place not in self._by_pos or pos + i >= self._by_pos[place][0]:
                    self._by_pos[place] = pos + i, value

    def _compare(self, name: str, real: Table, made: Table, how: str) -> None:
        if made == real:
            return
        keys = sorted(key for key in real.keys() | made.keys() if real.get(key) != made.get(key))
        examples = "; ".join(f"{key}: {made.get(key)} instead of {real.get(key)}" for key in keys[:3])
        self.findings.violation("table", f"{name} replayed {how} differs in {len(keys)} rows: {examples}")


def message_ids(event: Committed, rows_per_message: int) -> Sequence[str]:
    """The headrace-ids of the messages that one rows event makes."""
    if not rows_per_message or event.rows == 1:
        return (event.id,)
    return [f"{event.id}.{i}" for i in range(0, event.rows, rows_per_message)]


def _rows(message: dict[str, Any]) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    return zip(message["data"], message["old"] or [{}] * len(message["data"]), strict=True)
