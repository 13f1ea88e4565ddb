"""Documents of several tables, by Spark's tasks: changed rows lead to documents, and these are composed.

Both steps begin after a shuffle, so when all tasks of the step before have ended: all rows of the batch are kept when
the first document is searched. A shuffle by document also leaves each to one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.join_store import ElasticDocuments, ElasticRows
from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Rows
from headrace_documents.joins.composing import Composer, resolve
from headrace_documents.joins.tree import Document, JoinTrees, MemberPlan, RowChange, Touched, keep_former
from headrace_documents.truncate import Truncation, Truncator
from headrace_spark.dead_letters.records import Origin
from headrace_spark.settings import Settings
from headrace_spark.sink.conflicts import Conflicts
from headrace_spark.sink.dual_write import DualWrites
from headrace_spark.sink.writer import NO_CONTEXT, Context
from headrace_spark.status.counting import Counts

_TOKENS = 1000
"""Number of tokens that are resolved together."""
_HELD = 50_000
"""Maximum documents of a task at a time. One that is touched again after these is composed again."""


class Touch(NamedTuple):
    """A document of `target` that must be composed or, with a token, those that rows with it belong to."""

    target: str
    token: str
    id: str
    routing: str
    origin: Origin


class Truncated(NamedTuple):
    """Documents or rows to remove, once all tasks have written, and the message of the truncation."""

    truncation: Truncation
    origin: Origin


class RefusedDocument(NamedTuple):
    """A document that could not be written, a message that touched it, and why. `held` is the index for which the
    message is held, "" for none."""

    origin: Origin
    reason: str
    held: str = ""


class Members:
    """The rows of one task that belong to indexes with joins: what must be kept of them, and what they touch."""

    def __init__(self, settings: Settings, writer: BulkWriter, dual_writes: DualWrites, conflicts: Conflicts) -> None:
        self._conflicts = conflicts
        tombstones = settings.elasticsearch.deletes == "tombstone"
        self.trees = JoinTrees(settings.index, tombstones=tombstones, dual_writes=dual_writes)
        self._writer = writer
        self.touched = 0
        self._declared = set[MemberPlan]()
        self._reported = set[tuple[str, Touched]]()
        self._touched: dict[tuple[str, Touched], Origin] = {}
        self._changes: dict[str, list[tuple[RowChange, Origin]]] = {}
        """By index, until the replaced rows are read."""

    def actions(self, message: Rows, origin: Origin) -> list[Action] | None:
        """Returns what must be kept; None if no index with joins has the table. Raises MessageError, and then nothing
        of the message counts, and UnfitTable."""
        plans = self.trees.plans(message)
        if not plans:
            return None
        changes = [(plan.tree.target, list(plan.changes(message))) for plan in plans]
        for plan in plans:
            self._declare(plan)
        wanted: list[Action] = []
        for target, of_plan in changes:
            for change in of_plan:
                wanted += change.actions
                for touched in change.touched:
                    self._touch(target, touched, origin)
                self._changes.setdefault(target, []).append((change, origin))
        return wanted

    def _declare(self, plan: MemberPlan) -> None:
        tree, indexes = plan.tree, self._writer.indexes
        if plan not in self._declared:
            indexes.declare(tree.target, tree.settings, plan.properties)
            indexes.declare_rows(tree.rows_index, tree)
            self._conflicts.columns(tree.target, plan.table, plan.properties)
        # Later steps read and write both as they are.
        for index in (tree.target, tree.rows_index):
            if why := self._writer.ask(index, partial(indexes.unfit, index, ())):
                raise MessageError(why)
        self._declared.add(plan)

    def read_replaced(self) -> None:
        """Reads, before rows are written, what the replaced rows touch. Raises BulkError."""
        for target, changes in self._changes.items():
            rows = ElasticRows(self.trees.trees[target], self._writer)
            names = list({action.id for change, _ in changes for action in change.actions})
            kept = {row.id: row for row in rows.get(names)}
            for change, origin in changes if kept else ():
                for touched in keep_former(change.actions, kept, change.before):
                    self._touch(target, touched, origin)
        self._changes.clear()

    def touches(self) -> Iterator[Touch]:
        """Yields what was touched since the last call. The rows have been written."""
        self.touched += len(self._touched)
        for (target, touched), origin in self._touched.items():
            yield _touch(target, touched, origin)
        self._touched.clear()

    def _touch(self, target: str, touched: Touched, origin: Origin) -> None:
        key = (target, touched)
        if key not in self._reported:
            if len(self._reported) >= _HELD:
                self._reported.clear()
            self._reported.add(key)
            self._touched[key] = origin


def _touch(target: str, touched: Touched, origin: Origin) -> Touch:
    if isinstance(touched, Document):
        return Touch(target, "", *touched, origin)
    return Touch(target, touched, "", "", origin)


class _Once:
    """Drops what it has seen, as far as it remembers."""

    def __init__(self) -> None:
        self._seen = set[tuple[str, str, str]]()

    def of(self, touch: Touch) -> Iterator[Touch]:
        key = (touch.target, touch.id, touch.routing)
        if key not in self._seen:
            if len(self._seen) >= _HELD:
                self._seen.clear()
            self._seen.add(key)
            yield touch


class Joining:
    """The work of one task."""

    def __init__(self, settings: Settings, writer: BulkWriter, context: Context = NO_CONTEXT) -> None:
        self._held = Counter[str]()
        self._conflicts = Conflicts(settings, writer, Counts(), context.watch)
        tombstones = settings.elasticsearch.deletes == "tombstone"
        trees = JoinTrees(settings.index, tombstones=tombstones, dual_writes=context.dual_writes)
        self._trees, self._writer = trees.trees, writer
        self._truncator = Truncator(settings.elasticsearch, {one.name: one for one in settings.index}, self._writer)
        self._rows: dict[str, ElasticRows] = {}
        self.resolved = self.composed = self.refused = 0

    def resolve(self, touches: Iterable[Touch | Truncated]) -> Iterator[Touch]:
        """Truncates first. Yields the touches of documents, also of those that tokens lead to. Raises BulkError."""
        once = _Once()
        tokens: dict[str, dict[str, Origin]] = {}
        for touch in self._truncated(touches):
            if not touch.token:
                yield from once.of(touch)
                continue
            some = tokens.setdefault(touch.target, {})
            some.setdefault(touch.token, touch.origin)
            if len(some) >= _TOKENS:
                yield from self._documents(touch.target, tokens.pop(touch.target), once)
        for target, some in tokens.items():
            yield from self._documents(target, some, once)

    def _truncated(self, touches: Iterable[Touch | Truncated]) -> Iterator[Touch]:
        for one in touches:
            if isinstance(one, Touch):
                yield one
                continue
            what, origin = one
            if not what.joined:
                self._truncator.documents(what)
                continue
            for touched in self._truncator.rows(what, self._trees[what.target]):
                yield _touch(what.target, touched, origin)

    def _documents(self, target: str, tokens: dict[str, Origin], once: _Once) -> Iterator[Touch]:
        for document, origin in resolve(self._rows_of(target), tokens):
            self.resolved += 1
            yield from once.of(Touch(target, "", *document, origin))

    def sweep(self, truncated: Iterable[Truncated]) -> None:
        """Deletes the rest of the rows of truncated tables, once all documents are composed. Raises BulkError."""
        for what, _ in truncated:
            if what.joined:
                self._truncator.sweep(what, self._trees[what.target])

    def compose(self, touches: Iterable[Touch]) -> Iterator[RefusedDocument]:
        """Composes the documents, and yields those that were refused. Raises BulkError."""
        wanted: dict[str, dict[Document, Origin]] = {}
        for touch in touches:
            some = wanted.setdefault(touch.target, {})
            some.setdefault(Document(touch.id, touch.routing), touch.origin)
            if len(some) >= _HELD:
                yield from self._compose(touch.target, wanted.pop(touch.target))
        for target, some in wanted.items():
            yield from self._compose(target, some)

    def _compose(self, target: str, origins: dict[Document, Origin]) -> Iterator[RefusedDocument]:
        tree = self._trees[target]
        documents = ElasticDocuments(tree, self._writer)
        composer = Composer(tree, self._rows_of(target), documents)
        for document, reason in composer.run(origins):
            held = target if self._conflicts.hold([target]) else ""
            if held:
                self._held[held] += 1
            else:
                self.refused += 1
            yield RefusedDocument(origins[document], f"document {document.id} of index {target}: {reason}", held)
        self.composed += composer.composed

    def count(self, counts: Counts) -> None:
        """Adds the counts; must be called once at the end."""
        counts.numbers.update({"composed": self.composed, "resolved": self.resolved, "dead_letters": self.refused})
        counts.indexes.update(self._writer.tally.indexes)
        counts.held.update(self._held)

    def _rows_of(self, target: str) -> ElasticRows:
        """Returns the rows of an index, as all tasks of the step before have left them."""
        if target not in self._rows:
            self._rows[target] = ElasticRows(self._trees[target], self._writer)
            self._rows[target].refresh()
        return self._rows[target]
