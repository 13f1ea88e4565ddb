"""The work of one Spark task on its messages: parse, keep the newest of each document, write, report dead letters."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import structlog

from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Row, Rows, Statement
from headrace_documents.indexes.plans import Indexes, IndexPlan
from headrace_documents.indexes.projection import LacksColumn
from headrace_documents.messages import actions, read
from headrace_documents.newest import Newest, Refused
from headrace_documents.truncate import Truncation, TruncationPlan, not_truncated
from headrace_spark.dead_letters.held import Held
from headrace_spark.dead_letters.records import (
    DeadLetter,
    Header,
    Origin,
    dead_headers,
)
from headrace_spark.settings import Settings
from headrace_spark.sink.conflicts import Conflicts
from headrace_spark.sink.dual_write import with_dual_truncations, with_dual_writes
from headrace_spark.sink.writer import NO_CONTEXT, Context
from headrace_spark.status.counting import Counts
from headrace_spark.transform.joining import Members, Touch, Truncated

_NONE: dict[str, bytes] = {}
log = structlog.get_logger(__name__)


class Record(NamedTuple):
    """A Kafka message in Spark's form."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    headers: list[Header] | None
    computed: Sequence[Row] = ()
    """The computed values of each row of the message."""


class Worker:
    """Works through the messages of one task. `counts` has the results afterwards."""

    def __init__(
        self,
        settings: Settings,
        writer: BulkWriter,
        context: Context = NO_CONTEXT,
        counted: Counts | None = None,
    ) -> None:
        self._dual_writes, self._writer, self._batch = context.dual_writes, writer, context.batch
        self.counted = counted or Counts()
        """By table and index, and times; counts() has the rest."""
        self._committed: list[int] = []
        """Commit times of the messages whose actions wait in `_pending`."""
        self._rules = settings.elasticsearch.rules()
        self._indexes = Indexes(settings.index, tombstones=settings.elasticsearch.deletes == "tombstone")
        self._conflicts = Conflicts(settings, writer, self.counted, context.watch)
        self._members = Members(settings, writer, context.dual_writes, self._conflicts)
        self._has_joins = bool(self._members.trees.trees)
        self._takes_others = settings.takes_others
        self._truncation_plan = TruncationPlan(
            settings.elasticsearch, self._indexes, self._members.trees, takes_others=settings.takes_others
        )
        self._declared: set[IndexPlan] = set()
        self._most, self._most_bytes = settings.elasticsearch.bulk_actions, settings.elasticsearch.bulk_bytes
        self._bytes = 0
        """Bytes of the messages whose actions wait in `_pending`."""
        self._pending: Newest[Record] = Newest()
        self.messages = self.rows = self.bytes = 0
        self.ignored = self.truncated = self.dead = self.passed_over = 0

    def run(self, records: Iterable[Record]) -> Iterator[DeadLetter | Held | Touch | Truncated]:
        """Applies the messages; yields those that can't be applied, or not yet, what changed rows of joins touch, once
        they are kept, and what must be truncated after all of it. Raises BulkError if it can't continue, UnfitTable if
        a declared index and a table do not fit, and IndexRefused."""
        pending = self._pending
        for record in records:
            self.messages += 1
            self.bytes += len(record.value or b"")
            try:
                headers = dict(record.headers) if record.headers else _NONE
                message = read(record.value, record.key, headers)
                if record.computed and isinstance(message, Rows):
                    for row, more in zip(message.rows, record.computed, strict=False):
                        row |= more
                wanted = self._actions(message, record) if isinstance(message, Rows) else []
                truncations = self._truncations(message) if isinstance(message, Statement) else []
            except (MessageError, LacksColumn) as error:
                self.dead += 1
                yield dead_letter(record, str(error), self._batch)
                continue
            for truncation in truncations:
                self.truncated += 1
                yield Truncated(truncation, _origin(record))
            for action in wanted:
                pending.add(action, record)
            self._bytes += len(record.value or b"")
            if len(pending) >= self._most or self._bytes >= self._most_bytes:
                yield from self._flush()
        yield from self._flush()

    def _actions(self, message: Rows, record: Record) -> list[Action]:
        plans = self._indexes.plans(message)
        kept = self._members.actions(message, _origin(record)) if self._has_joins else None
        declared = bool(plans) or kept is not None
        if not declared and not self._takes_others:
            self.passed_over += len(message.rows)
            return []
        wanted = kept or [] if declared else actions(message, self._rules)
        for plan in plans:
            if plan not in self._declared:
                for target in {plan.target, self._dual_writes.get(plan.target, plan.target)}:
                    self._writer.indexes.declare(target, plan.settings, plan.properties)
                self._conflicts.columns(plan.target, plan.table, plan.properties)
                self._declared.add(plan)
            wanted += plan.actions(message)
        self.rows += len(message.rows)
        table = f"{message.database}.{message.table}"
        self.counted.tables[table] += len(message.rows)
        if message.committed_ms:
            self._committed.append(message.committed_ms)
        return not_truncated(self._writer, with_dual_writes(wanted, self._dual_writes), table)

    def _truncations(self, message: Statement) -> list[Truncation]:
        found = self._truncation_plan.of(message)
        if found is None:
            self.ignored += 1
            level = log.warning if message.kind == "RENAME" else log.debug
            level("a statement changes no document", kind=message.kind, table=f"{message.database}.{message.table}")
        return with_dual_truncations(found or [], self._dual_writes)

    def counts(self) -> dict[str, int]:
        """Returns what has been done so far, by name."""
        tally = self._writer.tally
        return {
            "messages": self.messages,
            "rows": self.rows,
            "indexed": tally.indexed,
            "deleted": tally.deleted,
            "stale": tally.stale,
            "rejected": tally.rejected,
            "ddl_ignored": self.ignored,
            "truncated": self.truncated,
            "touched": self._members.touched,
            "dead_letters": self.dead,
            "passed_over": self.passed_over,
            "bytes": self.bytes,
        }

    def totals(self) -> Counts:
        """Returns all counts; must be called once at the end."""
        self.counted.numbers.update(self.counts())
        self.counted.indexes.update(self._writer.tally.indexes)
        return self.counted

    def _flush(self) -> Iterator[DeadLetter | Held | Touch]:
        self._members.read_replaced()
        by_message: dict[tuple[str, int, int], list[Refused[Record]]] = {}
        for refused in self._pending.write(self._writer):
            record = refused.message
            by_message.setdefault((record.topic, record.partition, record.offset), []).append(refused)
        self._conflicts.compare_new()
        self._bytes = 0
        yield from self._members.touches()
        now = time.time()
        for committed in self._committed:
            self.counted.delay.observe(max(0.0, now - committed / 1000))
        self.counted.newest_ms = max(self.counted.newest_ms, *self._committed, 0)
        self._committed.clear()
        # One dead letter a message, however many of its rows were refused.
        for failures in by_message.values():
            first = min(failures, key=lambda refused: refused.action.row)
            rows = sorted({refused.action.row for refused in failures})
            more = f" (and {len(rows) - 1} more rows: {', '.join(map(str, rows[:20]))})" if len(rows) > 1 else ""
            reason = f"Elasticsearch refuses row {rows[0]}: {first.reason}{more}"
            if held := self._conflicts.hold(refused.action.target for refused in failures):
                for index in held:
                    self.counted.held[index] += 1
                    yield Held(index, self._dual_writes.get(index, ""), dead_letter(first.message, reason, self._batch))
                continue
            self.dead += 1
            yield dead_letter(first.message, reason, self._batch)


def _origin(record: Record) -> Origin:
    return Origin(record.topic, record.partition, record.offset)


def dead_letter(record: Record, reason: str, batch: int | None = None) -> DeadLetter:
    """Returns the message with its own headers and ours: why, from where, by which batch, and when."""
    origin = _origin(record)
    made = dead_headers(record.headers or [], reason, origin, record.key, record.value, batch)
    return DeadLetter(record.key, record.value, made)
