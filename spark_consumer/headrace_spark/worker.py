"""What one Spark task does with its messages: parse, keep the newest of each document, write, name the dead letters."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import structlog

from headrace_documents.changes import Rows, Statement
from headrace_documents.documents import Action
from headrace_documents.elastic import BulkWriter
from headrace_documents.emptying import Emptying, EmptyingPlan, not_emptied
from headrace_documents.errors import MessageError
from headrace_documents.indexes import Indexes, IndexPlan
from headrace_documents.messages import actions, read
from headrace_documents.newest import Newest, Refused
from headrace_spark.counting import Counts
from headrace_spark.joining import Emptied, Members, Touch
from headrace_spark.letters import ID, MAX_REASON, Header, Origin, dead_headers, texts
from headrace_spark.settings import Settings

log = structlog.get_logger("headrace_spark.worker")


class Record(NamedTuple):
    """A Kafka message as Spark hands it over."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    headers: list[Header] | None


class DeadLetter(NamedTuple):
    """A dead letter: key and value as they came, the headers with the reason and the origin added."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Worker:
    """Works through the messages of one task. `counts` says afterwards what was done."""

    def __init__(
        self, settings: Settings, writer: BulkWriter, batch: int | None = None, counted: Counts | None = None
    ) -> None:
        self._writer, self._batch = writer, batch
        self.counted = counted or Counts()
        """By table and index, and how long things took; counts() has the rest."""
        self._committed: list[int] = []
        """The times of commit of the messages whose actions wait in `_pending`."""
        self._rules = settings.elasticsearch.rules()
        self._indexes = Indexes(settings.index, tombstones=settings.elasticsearch.deletes == "tombstone")
        self._members = Members(settings, writer)
        self._takes_others = settings.takes_others
        self._emptying = EmptyingPlan(
            settings.elasticsearch, self._indexes, self._members.trees, takes_others=settings.takes_others
        )
        self._declared: set[IndexPlan] = set()
        self._most, self._most_bytes = settings.elasticsearch.bulk_actions, settings.elasticsearch.bulk_bytes
        self._bytes = 0
        """Of the messages whose actions wait in `_pending`."""
        self._pending: Newest[Record] = Newest()
        self.messages = self.rows = self.bytes = 0
        self.ignored = self.emptied = self.dead = self.passed_over = 0

    def run(self, records: Iterable[Record]) -> Iterator[DeadLetter | Touch | Emptied]:
        """Applies the messages; yields those that can't be applied, what changed rows of joins touch, once they are
        kept, and what is to be emptied behind all of it. Raises BulkError when it can't go on, and UnfitTable when a
        declared index and a table do not fit."""
        pending = self._pending
        for record in records:
            self.messages += 1
            self.bytes += len(record.value or b"")
            try:
                message = read(record.value, record.key, dict(record.headers or ()))
                wanted = self._actions(message, record) if isinstance(message, Rows) else []
                emptyings = self._emptyings(message) if isinstance(message, Statement) else []
            except MessageError as error:
                self.dead += 1
                yield dead_letter(record, str(error), self._batch)
                continue
            for emptying in emptyings:
                self.emptied += 1
                yield Emptied(emptying, Origin(record.topic, record.partition, record.offset))
            for action in wanted:
                pending.add(action, record)
            self._bytes += len(record.value or b"")
            if len(pending) >= self._most or self._bytes >= self._most_bytes:
                yield from self._flush()
        yield from self._flush()

    def _actions(self, message: Rows, record: Record) -> list[Action]:
        plans = self._indexes.plans(message)
        kept = self._members.actions(message, Origin(record.topic, record.partition, record.offset))
        declared = bool(plans) or kept is not None
        if not declared and not self._takes_others:
            self.passed_over += len(message.rows)
            return []
        wanted = kept or [] if declared else actions(message, self._rules)
        for plan in plans:
            if plan not in self._declared:
                self._writer.indexes.declare(plan.target, plan.settings, plan.properties)
                self._declared.add(plan)
            wanted += plan.actions(message)
        self.rows += len(message.rows)
        self.counted.tables[f"{message.database}.{message.table}"] += len(message.rows)
        if message.committed_ms:
            self._committed.append(message.committed_ms)
        table = f"{message.database}.{message.table}"
        # It looks at the indexes, which may have to be waited for.
        return self._writer.ask(table, lambda: not_emptied(self._writer.indexes, wanted, table))

    def _emptyings(self, message: Statement) -> list[Emptying]:
        found = self._emptying.of(message)
        if found is None:
            self.ignored += 1
            level = log.warning if message.kind == "RENAME" else log.debug
            level("a statement changes no document", kind=message.kind, table=f"{message.database}.{message.table}")
        return found or []

    def counts(self) -> dict[str, int]:
        """What has been done so far, by name."""
        tally = self._writer.tally
        return {
            "messages": self.messages,
            "rows": self.rows,
            "indexed": tally.indexed,
            "deleted": tally.deleted,
            "stale": tally.stale,
            "rejected": tally.rejected,
            "ddl_ignored": self.ignored,
            "emptied": self.emptied,
            "touched": self._members.touched,
            "dead_letters": self.dead,
            "passed_over": self.passed_over,
            "bytes": self.bytes,
        }

    def totals(self) -> Counts:
        """All that was counted, to be called once at the end."""
        self.counted.numbers.update(self.counts())
        self.counted.indexes.update(self._writer.tally.indexes)
        return self.counted

    def _flush(self) -> Iterator[DeadLetter | Touch]:
        self._members.look()
        by_message: dict[tuple[str, int, int], list[Refused[Record]]] = {}
        for refused in self._pending.write(self._writer):
            record = refused.message
            by_message.setdefault((record.topic, record.partition, record.offset), []).append(refused)
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
            self.dead += 1
            reason = f"Elasticsearch refuses row {rows[0]}: {first.reason}{more}"
            yield dead_letter(first.message, reason, self._batch)


def dead_letter(record: Record, reason: str, batch: int | None = None) -> DeadLetter:
    """The message with its own headers and ours: why, from where, by which batch, and when."""
    origin = Origin(record.topic, record.partition, record.offset)
    made = dead_headers(record.headers or [], reason, origin, record.key, record.value, batch)
    log.warning("dead letter", id=texts(made)[ID], reason=reason[:MAX_REASON], **origin._asdict())
    return DeadLetter(record.key, record.value, made)
