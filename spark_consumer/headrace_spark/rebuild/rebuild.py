"""Fills a new index from the tables, while the stream writes to both, and replaces the old one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import structlog
from pyspark.sql import SparkSession

from headrace_documents.documents import rows_index
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.index_setup import truncated_of
from headrace_documents.elastic.join_store import root_documents
from headrace_documents.elastic.mapping_conflicts import Conflict
from headrace_documents.errors import ConsumerError
from headrace_documents.joins.tree import JoinTree
from headrace_spark.checkpoint import ConsumerPosition
from headrace_spark.dead_letters.held import HeldMessages
from headrace_spark.rebuild.aliases import behind, move, next_index
from headrace_spark.rebuild.filling import Compose, Fill, Filled, TableRows, Target
from headrace_spark.settings import Settings, SourceSettings
from headrace_spark.sink.dual_write import Note, Notes
from headrace_spark.source.connection import Source
from headrace_spark.source.reading import Key, TableReader
from headrace_spark.source.tables import SourceTable

log = structlog.get_logger(__name__)

_REMEMBER = "30d"
"""How long the new index remembers deletes: longer than the reading takes, because a row that was read before its
delete is written after it."""
_POLL = 0.5
_REPORT = 10.0
_COMPOSED = 20_000
"""Documents of one step."""


class RebuildError(ConsumerError):
    """The rebuild can't continue. What was done stays, and it can be resumed."""


class RefusedRows(RebuildError):
    """Rows can't be documents of the new index: an operator must decide."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command requests, or `by` the consumer, for `conflicts`. `wait` is in seconds."""

    resume: bool = False
    offline: bool = False
    keep_old: bool = False
    accept_refused: bool = False
    wait: float = 600.0
    by: str = "command"
    conflicts: frozenset[Conflict] = frozenset()


class Rebuild:
    """The rebuild of one index. Each of its steps may be repeated, so it can be resumed after a kill at any moment."""

    def __init__(
        self, settings: Settings, source: SourceSettings, spark: SparkSession, cluster: Cluster, name: str,
        wishes: Wishes,
    ) -> None:  # fmt: skip
        self._settings, self._source_settings, self._spark = settings, source, spark
        self._cluster, self._name, self._wishes = cluster, name, wishes
        self._notes = Notes(cluster)
        self._run = uuid.uuid4().hex
        self._progress, self._consumer = _Progress(), ConsumerPosition(settings, spark)
        self.step = "begins"
        """The present step."""

    @property
    def progress(self) -> dict[str, Any]:
        """Returns the progress. `rows_about` is the server's estimate."""
        progress = self._progress
        return {
            "step": self.step, "rows": progress.rows, "rows_about": progress.wanted, "refused": progress.refused
        }  # fmt: skip

    @property
    def run_id(self) -> str:
        """Returns the run that the note names while nobody else continues it."""
        return self._run

    def run(self) -> None:
        """Runs the rebuild. Raises RebuildError, SourceError, ExpressionError and the errors of
        headrace_documents.errors."""
        rows = TableRows(self._settings, self._spark, self._name)
        note = self._begin()
        into = str(note["into"])
        if behind(self._cluster, self._name) == ((into,), True):  # killed after the move
            self._finish(note)
            return
        target = Target(self._settings, self._name, into)
        with closing(Source(self._source_settings, self._spark.sparkContext._jvm)) as source:
            tables = target.tables(source)
            if not tables:
                raise RebuildError(f"no table of the source has rows in index {self._name}: check [[index]] and name")
            self._prepare(target, tables)
            self._note(prepared=True)
            if not self._wishes.offline:
                self._wait(f"the consumer writes to {into} too", lambda: self._consumer_writes(into))
            self.step = "reads the tables"
            self._read(source, target, tables, rows, note)
        if (tree := target.tree) is not None:
            self.step = "composes documents"
            self._compose(target, tree)
        self._require_none_refused()
        if not self._wishes.offline:
            ends = self._consumer.ends()
            self._wait("the consumer has read what Kafka has now", lambda: self._consumer.is_past(ends))
        self._move(target)
        self._finish(self._own_note())

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _begin(self) -> Note:
        found = self._notes.get(self._name)
        if found is not None:
            if not self._wishes.resume:
                raise RebuildError(
                    f"a rebuild of index {self._name} has begun already, into {found['into']}: go on with --resume"
                )
            self._notes.update(self._name, run=self._run, by=self._wishes.by)
            log.info("the rebuild is resumed", index=self._name, into=found["into"], rows=found.get("rows", 0))
            return self._own_note()
        if not self._settings.elasticsearch.create_index:
            raise RebuildError("a rebuild makes an index: it needs create_index = true in [elasticsearch]")
        there = behind(self._cluster, self._name)
        if there.indexes and not there.is_alias and self._wishes.keep_old:
            raise RebuildError(
                f"{self._name} is an index and no alias, and an alias can't have the name of an index: the old one "
                "can't be kept. Leave --keep-old out"
            )
        into = next_index(self._cluster, self._name)
        note = {
            "into": into, "run": self._run, "old": list(there.indexes), "started": time.time(), "done": {},
            "prepared": False, "by": self._wishes.by, "conflicts": sorted(list(one) for one in self._wishes.conflicts),
        }  # fmt: skip
        if not self._notes.begin(self._name, note):
            raise RebuildError(f"another rebuild of index {self._name} has begun at the same time")
        log.info("the rebuild begins", index=self._name, into=into, old=list(there.indexes))
        return self._own_note()

    def _prepare(self, target: Target, tables: list[SourceTable]) -> None:
        """Creates the indexes, with the old one's facts about truncated tables."""
        writer = BulkWriter(self._settings.elasticsearch, self._cluster)
        for table in tables:
            if why := target.prepare(writer, table):
                raise RebuildError(why)
        tree = target.tree
        pairs = [(self._name, target.into)]
        if tree is not None:
            pairs.append((rows_index(self._name), tree.rows_index))
        for old, new in pairs:
            self._cluster.put_settings(new, {"index.gc_deletes": _REMEMBER})
            if self._cluster.exists(old):
                metas = [one.get("_meta") or {} for one in self._cluster.mappings(old).values()]
                for table_name, version in truncated_of(metas).items():
                    writer.indexes.note_truncated(new, table_name, version)

    def _read(self, source: Source, target: Target, tables: list[SourceTable], rows: TableRows, note: Note) -> None:
        """Reads the tables, some ranges of a key at a time. After each step the progress is recorded."""
        settings, done = self._source_settings, dict(note.get("done") or {})
        self._progress.begin(int(note.get("rows", 0)), note)
        readers = {str(table): TableReader(self._spark, source, table, settings.partition_rows) for table in tables}
        self._progress.wanted = sum(reader.estimate() for reader in readers.values())
        for table in tables:
            state = done.get(str(table)) or {}
            if state.get("ended"):
                continue
            reader = readers[str(table)]
            fill = Fill(self._settings, self._name, target.into, table, rows.messages(table))
            after: Key | None = tuple(state["after"]) if state.get("after") else None
            ranges = reader.ranges(after)
            while some := list(islice(ranges, settings.readers)):
                self._own_note()
                filled = self._sum(rows.read(reader, some).mapPartitions(fill).collect())
                self._progress.add(filled)
                ended = some[-1].last is None
                self._note(
                    done={str(table): {"after": list(some[-1].last or ()), "ended": ended}},
                    rows=self._progress.rows,
                    refused=self._progress.refused,
                    examples=list(self._progress.examples),
                )
                self._progress.report(self._name, str(table))

    def _compose(self, target: Target, tree: JoinTree) -> None:
        """Composes the documents of all kept rows. Composing one twice is harmless, so a resumed rebuild begins with
        the first."""
        self._cluster.refresh(tree.rows_index)
        compose, tasks = Compose(self._settings, self._name, target.into), self._source_settings.readers
        count = 0
        with closing(root_documents(self._cluster, tree)) as documents:
            while some := list(islice(documents, _COMPOSED)):
                self._own_note()
                filled = self._sum(self._spark.sparkContext.parallelize(some, tasks).mapPartitions(compose).collect())
                count += filled.rows
                self._progress.refuse(filled)
                log.info("documents are composed", index=self._name, documents=count)

    def _require_none_refused(self) -> None:
        if self._progress.refused and not self._wishes.accept_refused:
            raise RefusedRows(
                f"{self._progress.refused} rows can't be documents of the new index, such as "
                f"{'; '.join(self._progress.examples)}. The old index stays. Go on without these rows with --resume "
                "--accept-refused, or start again: correct [[index]], then --abort and rebuild"
            )

    def _move(self, target: Target) -> None:
        elastic, tree = self._settings.elasticsearch, target.tree
        moves = {self._name: target.into}
        if tree is not None:
            moves[rows_index(self._name)] = tree.rows_index
        old = {name: list(behind(self._cluster, name).indexes) for name in moves}
        self._note(old=[one for some in old.values() for one in some if one not in moves.values()])
        for into in moves.values():
            self._cluster.refresh(into)
        self._own_note()
        move(self._cluster, moves)
        log.info("the name is moved", index=self._name, into=target.into, gc_deletes=elastic.gc_deletes)

    def _finish(self, note: Note) -> None:
        """Completes the rebuild after the move: the consumer writes one index again, and the old ones are deleted."""
        into = str(note["into"])
        for one in (into, rows_index(into)):
            if self._cluster.exists(one):
                self._cluster.put_settings(one, {"index.gc_deletes": self._settings.elasticsearch.gc_deletes})
        for one in note.get("old") or ():
            if not self._wishes.keep_old and one not in (self._name, rows_index(self._name)):
                self._cluster.delete_index(str(one))
        # Their rows were read from the tables, or were written to both.
        HeldMessages(self._cluster, self._settings.elasticsearch, self._name).drop()
        self._notes.remove(self._name)
        log.info("the rebuild is done", index=self._name, into=into, rows=note.get("rows", 0))

    # -- the consumer -------------------------------------------------------------------------------------------------

    def _consumer_writes(self, into: str) -> bool:
        return (self._own_note().get("consumer") or {}).get("into") == into

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        began = reported = time.monotonic()
        self.step = f"waits until {what}"
        while not condition():
            now = time.monotonic()
            if now - began >= self._wishes.wait:
                raise RebuildError(
                    f"within {self._wishes.wait:g} s it did not come about that {what}. Is the consumer running, with "
                    "this configuration? What was done stays: go on with --resume. --offline does not wait; then the "
                    "consumer must not run until the rebuild is done"
                )
            if now - reported >= _REPORT or reported == began:
                reported = now
                log.info("waiting for the consumer", until=what, seconds=round(now - began))
            time.sleep(_POLL)

    # -- the note -----------------------------------------------------------------------------------------------------

    def _own_note(self) -> Note:
        note = self._notes.get(self._name)
        if note is None or note.get("run") != self._run:
            raise RebuildError(f"the rebuild of index {self._name} was aborted, or resumed by another process")
        return note

    def _note(self, **fields: Any) -> None:
        if not self._notes.update(self._name, **fields):
            raise RebuildError(f"the rebuild of index {self._name} was aborted")

    @staticmethod
    def _sum(parts: list[Filled]) -> Filled:
        total = Filled()
        for part in parts:
            total = total.plus(part)
        return total


def abort(settings: Settings, cluster: Cluster, name: str) -> None:
    """Abandons a rebuild: the consumer writes one index again, and the new one is deleted. Messages that are held for
    it become dead letters, and the conflict that it was begun for begins no other. Raises RebuildError."""
    notes, held = Notes(cluster), HeldMessages(cluster, settings.elasticsearch, name)
    note = notes.get(name)
    conflicts = held.conflicts() | {Conflict(*one) for one in (note or {}).get("conflicts") or ()}
    if note is None and (not conflicts or conflicts <= held.given_up()):
        raise RebuildError(f"there is no rebuild of index {name}")
    if conflicts:
        held.give_up(conflicts)
    if note is None:
        log.info("the rebuild is given up before it began", index=name)
        return
    notes.remove(name)
    into = str(note["into"])
    if into not in behind(cluster, name).indexes:
        for one in (into, rows_index(into)):
            cluster.delete_index(one)
    log.info("the rebuild is given up", index=name, into=into)


class _Progress:
    """Rows that were read, in all runs, and the rate of this one."""

    def __init__(self) -> None:
        self.rows = self.refused = self.wanted = 0
        self.examples: tuple[str, ...] = ()
        self._before, self._began, self._reported = 0, time.monotonic(), 0.0

    def begin(self, rows: int, note: Note) -> None:
        """Continues from the recorded progress."""
        self.rows = self._before = rows
        self.refused, self.examples = int(note.get("refused", 0)), tuple(note.get("examples") or ())
        self._began = time.monotonic()

    def add(self, filled: Filled) -> None:
        """Counts what was done."""
        self.rows += filled.rows
        self.refuse(filled)

    def refuse(self, filled: Filled) -> None:
        """Counts refused rows."""
        self.refused += filled.refused
        self.examples = (*self.examples, *filled.examples)[:5]

    def report(self, index: str, table: str) -> None:
        """Logs the progress, every few seconds."""
        now = time.monotonic()
        if now - self._reported < _REPORT and self._reported:
            return
        self._reported = now
        rate = (self.rows - self._before) / max(now - self._began, 0.001)
        left = max(0, self.wanted - self.rows)
        log.info(
            "the rebuild goes on",
            index=index,
            table=table,
            rows=self.rows,
            rows_about=self.wanted,
            rows_per_second=round(rate, 1),
            left_seconds=round(left / rate) if rate else None,
            refused=self.refused,
        )
