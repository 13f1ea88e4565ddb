"""The checker: one topic against what the source's binlog says was committed, and against the tables at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import orjson

from sim.order import KeyOrder

SHOWN = 8
"""Violations of one kind that are kept as text; all are counted."""

Table = dict[str, dict[str, Any]]
"""A table's rows by the text of `id`."""


@dataclass(frozen=True, slots=True)
class Committed:
    """One rows event of the source's binlog, in its order. `id` is what headrace-id begins with: GTID#number. `lost`:
    the source lacks it by now, so that it need not have a message."""

    id: str
    rows: int
    lost: bool = False


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
    """Bytes of an old epoch that may come after the first message of a newer one."""
    committed: int = 0
    """Changed rows that the source's binlog holds."""
    messages: int = 0
    rows: int = 0
    duplicates: int = 0
    escaped_messages: int = 0
    """Of an old epoch, after the first of a newer one."""
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
    """Whether one with this id was not of an old epoch after a newer one."""


@dataclass(slots=True)
class Part:
    """What is published after the position was moved, from an offset of the topic on: the committed events from the
    new position. `gap`: changes were skipped, or published and lost by the source, so that only keys with later
    messages are compared with the tables, or with `whole` all rows that the tables have. `skipped`: ids of what the
    move skipped, which need not come."""

    offset: int
    events: list[Committed]
    gap: bool = False
    whole: bool = False
    skipped: dict[str, None] = field(default_factory=dict)

    def begins_with(self, id_: str) -> bool:
        """Returns whether it may begin with this id: what the source lacked when the position was moved may come."""
        for event in self.events:
            if event.id == id_:
                return True
            if not event.lost:
                break
        return False


class TopicChecker:
    """Takes the records of one topic in the order of their offsets, partition by partition or mixed.

    The kinds of violations:
      missing     a committed change has no message, or only one of an old epoch after a newer one
      ghost       a message of nothing that was committed
      reordered   with old epochs and duplicates taken out, a message comes after a later change's
      numbers     the same for `_pos`, which has to grow with each change
      altered     a duplicate that differs from the first
      duplicate   exactly once only: the same change twice
      escaped     more bytes of an old epoch after the first message of a newer one than the bound
      epochless   no header that names the epoch
      backward    a row of a snapshot has a lower `_pos` than an earlier message of its key, or a change than such a row
      stale       a row of a snapshot, or what a change says that a row was, is not what earlier messages of its key
                  have made of it
      table       the table that the messages make, by order or by `_pos` for each key, is not the real one
    """

    def __init__(
        self,
        committed: Iterable[Committed],
        rows_per_message: int,
        delivery: str,
        bound: int,
        *,
        epochs: bool = True,
        renumbered: bool = False,
        by_key: bool = False,
        parked: Collection[str] = (),
        gap: bool = False,
        unstored: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`renumbered`: a message that comes again may have a higher `_pos`, because another server commits later.
        `by_key`: messages may have been refused and come later, so that only the order of each row is kept. `parked`:
        headrace-ids of those that were parked at any time: they come under the epoch of the run that made them.
        `gap`: as of a Part. `unstored`: ids of what the source lost before a position after it was stored, each with
        the first epoch that knows of it: no later run can know that an earlier one has published it."""
        self.findings = Findings(delivery, bound)
        self._exactly_once, self._want_epochs = delivery == "exactly_once", epochs
        self._rows_per_message, self._renumbered = rows_per_message, renumbered
        self._keys, self._parked = KeyOrder() if by_key else None, parked
        self._seen: dict[str, None] = {}
        """Ids of all messages that count."""
        self._holes: dict[str, None] = {}
        """With `by_key`: what had no message when a position was moved past it."""
        self._rank: dict[str, int] = {}
        self._lost: dict[str, None] = {}
        self._last = ""
        self._first: dict[str, _First] = {}
        self._newest: dict[int, tuple[int, int]] = {}
        """By partition the highest epoch so far, and where it began."""
        self._reached: dict[int, tuple[int, int, int]] = {}
        """By partition the highest rank and `_pos` so far, and where."""
        self._escaped: dict[tuple[int, int], int] = {}
        self._ordered: dict[str, Table] = {}
        self._unstored = unstored
        self._unstored_rows: dict[tuple[str, str], None] = {}
        """By table and key the rows of `_ordered` that are as something unstored has left them."""
        self._by_pos: dict[tuple[str, str], tuple[int, dict[str, Any] | None, str]] = {}
        """By table and key the row with the highest `_pos`, this number, and the message's id."""
        self._key_pos: dict[tuple[int, str, str], int] = {}
        """By partition, table and key the `_pos` of the last message that counts."""
        self._numbers: dict[str, int] = {}
        """By id the `_pos` of the last message of any part."""
        self._highest, self._highest_before = 0, 0
        """The highest `_pos` so far, and when the present part began."""
        self._snapshot_ids: dict[str, _First] = {}
        self._wholes: list[int] = []
        """Where positions were moved to the end, and all rows are read again."""
        self._initial: dict[tuple[int, str, str], int] = {}
        """By reading, table and key where the initial snapshot's row is."""
        self._judged: dict[tuple[str, str], None] | None = None
        """The keys that are compared with the tables at the end; None for all."""
        self._whole = False
        """Whether the rows that the tables have at the end are compared too."""
        self._later: deque[Part] = deque()
        self._older: dict[str, None] = {}
        """Ids of former parts, of which messages may still be under way."""
        self._begin(Part(0, list(committed), gap))

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
        current = self._judge_epoch(record, message, pos)
        if "headrace-snapshot" in record.headers:
            self._feed_snapshot(id_, record, message, pos, current=current)
            return
        self._begin_later(id_, record.offset)
        if current:
            self._judge_number(id_, record, pos)
        content = hash((message["type"], orjson.dumps((message["data"], message["old"]))))
        first = self._first.get(id_)
        if first is None:
            self._first[id_] = _First(record.offset, pos, content, current)
        else:
            self._judge_again(id_, first, record, pos, content)
        if id_ not in self._rank and id_ not in self._older:
            found.violation("ghost", f"offset {record.offset}: {id_} was never committed")
        elif self._keys is not None:
            if current:
                self._apply(message, record, pos)
                self._first[id_].current = True
                self._seen[id_] = None
                if id_ not in self._lost:
                    self._keys.take(
                        id_, record.offset, _positions(message, pos), _epoch(record), self._snapshot_ids.keys()
                    )
        elif id_ in self._rank and current and (first is None or not first.current):
            self._judge_order(id_, record, pos)
            self._apply(message, record, pos)
            self._first[id_].current = True
        self._note_rows(message, pos, id_)

    def _feed_snapshot(self, id_: str, record: Record, message: dict[str, Any], pos: int, *, current: bool) -> None:
        """Takes a row that a snapshot has read. No other row may have its id."""
        content = hash(orjson.dumps(message["data"]))
        first = self._snapshot_ids.get(id_)
        if first is None:
            self._snapshot_ids[id_] = first = _First(record.offset, pos, content, False)
        else:
            self._judge_again(id_, first, record, pos, content)
        if current and self._keys is not None:
            first.current = True
            self._apply(message, record, pos)
            self._keys.take(id_, record.offset, _positions(message, pos), _epoch(record))
        elif current and not first.current:
            first.current = True
            if self._judged is None and not self._lost and not self._skips(record.offset):
                self._judge_read(message, record)
            self._apply(message, record, pos)
            if self._exactly_once and record.headers["headrace-snapshot"] == b"initial":
                self._judge_rows(message, record)
        self._note_rows(message, pos, id_)

    def _skips(self, offset: int) -> bool:
        """Returns whether a move that skips changes was done before an offset, and no change has come since."""
        return any(part.gap and part.offset <= offset for part in self._later)

    def _judge_read(self, message: dict[str, Any], record: Record) -> None:
        """Judges that a row is as the messages before it have left it: the stream has passed what was read."""
        table = self._ordered.get(message["table"], {})
        for row, _ in _rows(message):
            if (record.partition, message["table"], row["id"]) in self._key_pos and table.get(row["id"]) != row:
                before = table.get(row["id"])
                text = f"offset {record.offset}: {message['table']} was read as {row}, and the stream has {before}"
                self.findings.violation("stale", text)

    def _judge_rows(self, message: dict[str, Any], record: Record) -> None:
        """Judges that each row is published once, also if reading goes on after a kill."""
        for row, _ in _rows(message):
            reading = sum(offset <= record.offset for offset in self._wholes)
            place = reading, message["table"], row["id"]
            if place in self._initial:
                text = (
                    f"offsets {self._initial[place]} and {record.offset}: the row {place[1:]} of the initial snapshot"
                )
                self.findings.violation("duplicate", text)
            self._initial[place] = record.offset

    # -- positions that are moved ---------------------------------------------------------------------------------

    def moved(self, part: Part) -> None:
        """Notes that the position was moved; call it before records are fed."""
        self._later.append(part)
        if part.whole:
            self._wholes.append(part.offset)

    def _begin_later(self, id_: str, offset: int) -> None:
        """Begins a part with its first message; where that may be refused, with any of its messages. Of several that
        begin with the same one, only something after the last move has published it."""
        reached = 0
        for number, part in enumerate(self._later, 1):
            if part.offset > offset:
                break
            if part.begins_with(id_) or (self._keys is not None and any(event.id == id_ for event in part.events)):
                reached = number
        for _ in range(reached):
            self._begin(self._later.popleft())

    def _begin(self, part: Part) -> None:
        self._end_part()
        for id_ in part.skipped:
            self._holes.pop(id_, None)
        if part.gap:
            self._judge_keys()
        elif self._keys is not None:
            self._keys.moved(self._snapshot_ids.keys())
        self._older |= dict.fromkeys(self._rank)
        self._rank = {}
        for event in part.events:
            for id_ in message_ids(event, self._rows_per_message):
                self._rank[id_] = len(self._rank)
                self._lost.pop(id_, None)
                if event.lost:
                    self._lost[id_] = None
        self._last = next(reversed(self._rank), "")
        self._first, self._reached, self._key_pos = {}, {}, {}
        self._highest_before = self._highest
        if part.gap:
            self._judged = {}
        self._whole = part.whole or (self._whole and not part.gap)

    def _end_part(self) -> None:
        """Judges that what was published before a move has no hole."""
        highest = max((rank for id_, rank in self._rank.items() if self._counts(id_)), default=-1)
        for id_, rank in self._rank.items():
            if rank >= highest or self._counts(id_) or id_ in self._lost:
                continue
            if self._keys is not None:
                self._holes[id_] = None
            else:
                self.findings.violation("missing", f"{id_} has no message, and later ones have, before a move")

    def _judge_keys(self) -> None:
        """Judges the order of each row, and begins again."""
        if self._keys is not None:
            for text in self._keys.violations():
                self.findings.violation("reordered", text)
            self._keys = KeyOrder()

    def _counts(self, id_: str) -> bool:
        return id_ in self._first and self._first[id_].current

    def finish(self, tables: dict[str, Table]) -> Findings:
        """The verdict, once all was fed; `tables` are the source's at the end, by name."""
        found = self.findings
        skipped = dict[str, None]()
        while self._later:
            part = self._later.popleft()
            skipped |= part.skipped
            if not self._later:
                self._begin(replace(part, skipped=skipped))
            elif part.gap:  # it was moved on before anything was published
                self._judged = {}
                self._whole = self._whole and part.whole
        for id_ in self._rank:
            first = self._first.get(id_)
            if id_ in self._lost:
                continue
            if first is None:
                found.violation("missing", f"{id_} has no message")
            elif not first.current:
                found.violation("missing", f"{id_} has only a message of an old epoch, at offset {first.offset}")
        for id_ in self._holes:
            if id_ not in self._seen and id_ not in self._lost:
                found.violation("missing", f"{id_} has no message, also none after a move")
        self._judge_keys()
        for (partition, epoch), size in self._escaped.items():
            if size > found.bound:
                limit = f"{found.bound} may"
                found.violation("escaped", f"partition {partition}: {size} bytes of epoch {epoch} came late, {limit}")
        replayed: dict[str, Table] = {}
        excused = dict[tuple[str, str], None]()
        for (table, key), (_, row, id_) in self._by_pos.items():
            if row is not None:
                replayed.setdefault(table, {})[key] = row
            if id_ in self._lost:  # consumers have what no server has, until the row changes again
                excused[table, key] = None
        for name, real in tables.items():
            self._compare(name, real, self._ordered.get(name, {}), "in order", self._unstored_rows)
            self._compare(name, real, replayed.get(name, {}), "by _pos", excused)
        return found

    # -- one record -----------------------------------------------------------------------------------------------

    def _judge_epoch(self, record: Record, message: dict[str, Any], pos: int) -> bool:
        """Whether the message counts: it is not of an older epoch than one before it in the partition, or it was
        parked. A parked one that comes again after later ones about its rows is of a daemon that was replaced."""
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
        if self._keys is not None and record.headers["headrace-id"].decode().partition("@")[0] in self._parked:
            id_ = record.headers["headrace-id"].decode()
            rows = list(_positions(message, pos))
            if id_ not in self._seen or self._keys.newer(rows) or self._keys.made_again(id_, rows, epoch):
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
        # One that was parked before a move back comes with its former number, and again with that of the move.
        higher = self._renumbered or (self._keys is not None and id_ in self._older)
        if first.content != content or (pos < first.pos if higher else pos != first.pos):
            found.violation("altered", f"{where} differ, _pos {first.pos} and {pos}")
        if self._exactly_once:
            epoch = record.headers.get("headrace-epoch", b"?").decode()
            found.violation("duplicate", f"{where}, the second of epoch {epoch}")

    def _judge_number(self, id_: str, record: Record, pos: int) -> None:
        """After a move back a change has the `_pos` that it had, or one that was never given out."""
        before = self._numbers.get(id_, pos)
        if pos != before and pos <= self._highest_before and not self._renumbered:
            text = f"offset {record.offset}: {id_} comes again with _pos {pos}, which is neither {before} nor new"
            self.findings.violation("numbers", text)
        self._numbers[id_], self._highest = pos, max(pos, self._highest)

    def _judge_order(self, id_: str, record: Record, pos: int) -> None:
        found, rank = self.findings, self._rank[id_]
        last_rank, last_pos, where = self._reached.get(record.partition, (-1, -1, -1))
        if rank < last_rank:
            found.violation("reordered", f"offset {record.offset}: {id_} comes after a later change at {where}")
        elif pos <= last_pos:
            found.violation("numbers", f"offset {record.offset}: _pos {pos} is not above {last_pos} at {where}")
        else:
            self._reached[record.partition] = rank, pos, record.offset

    # -- tables ---------------------------------------------------------------------------------------------------

    def _apply(self, message: dict[str, Any], record: Record, pos: int) -> None:
        table = self._ordered.setdefault(message["table"], {})
        epoch, id_ = _epoch(record), record.headers["headrace-id"].decode()
        unstored = epoch < self._unstored.get(id_, 0)
        for i, (row, old) in enumerate(_rows(message)):
            key = record.partition, message["table"], row["id"]
            if self._snapshot_ids and self._keys is None and pos + i < (before := self._key_pos.get(key, 0)):
                text = f"offset {record.offset}: _pos {pos + i} of {key[1:]} is below {before} of a former message"
                self.findings.violation("backward", text)
            known = key in self._key_pos and self._keys is None and self._judged is None and not self._lost
            self._key_pos[key] = pos + i
            for changed in (row["id"], old.get("id", row["id"])):
                self._unstored_rows.pop((message["table"], changed), None)
                if unstored:  # consumers have what no server has, until the row changes again
                    self._unstored_rows[message["table"], changed] = None
            if self._judged is not None:
                self._judged[key[1:]] = None
            there, was = table.get(row["id"]), row if message["type"] == "DELETE" else old
            if known and there is not None and not there.items() >= was.items():
                text = f"offset {record.offset}: {key[1:]} was {was}, and the messages before it have {there}"
                self.findings.violation("stale", text)
            if message["type"] == "DELETE":
                table.pop(row["id"], None)
                continue
            if "id" in old:
                table.pop(old["id"], None)
            table[row["id"]] = row

    def _note_rows(self, message: dict[str, Any], pos: int, id_: str) -> None:
        """What a consumer does that knows nothing of epochs and duplicates: the highest `_pos` of a key wins."""
        for i, (row, old) in enumerate(_rows(message)):
            deleted = message["type"] == "DELETE"
            changes = [(old["id"], None)] if "id" in old else []
            for key, value in [*changes, (row["id"], None if deleted else row)]:
                place = message["table"], key
                if place not in self._by_pos or pos + i >= self._by_pos[place][0]:
                    self._by_pos[place] = pos + i, value, id_

    def _compare(self, name: str, real: Table, made: Table, how: str, excused: dict[tuple[str, str], None]) -> None:
        keys = sorted(key for key in real.keys() | made.keys() if real.get(key) != made.get(key))
        keys = [key for key in keys if (name, key) not in excused]
        if self._judged is not None:
            keys = [key for key in keys if (name, key) in self._judged or (self._whole and key in real)]
        if not keys:
            return
        examples = "; ".join(f"{key}: {made.get(key)} instead of {real.get(key)}" for key in keys[:3])
        self.findings.violation("table", f"{name} replayed {how} differs in {len(keys)} rows: {examples}")


def _positions(message: dict[str, Any], pos: int) -> Iterable[tuple[tuple[str, str], int]]:
    return (((message["table"], row["id"]), pos + i) for i, (row, _) in enumerate(_rows(message)))


def _epoch(record: Record) -> int:
    return int(record.headers.get("headrace-epoch", b"0"))


def message_ids(event: Committed, rows_per_message: int) -> Sequence[str]:
    """The headrace-ids of the messages that one rows event makes."""
    if not rows_per_message or event.rows == 1:
        return (event.id,)
    return [f"{event.id}.{i}" for i in range(0, event.rows, rows_per_message)]


def _rows(message: dict[str, Any]) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    return zip(message["data"], message["old"] or [{}] * len(message["data"]), strict=True)
