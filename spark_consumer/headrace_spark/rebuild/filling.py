"""The work of a Spark task on rows that were read from a table: it writes them to an index that is filled."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pyspark import RDD
from pyspark.sql import SparkSession

from headrace_documents.documents import Action, index_name, index_owner
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.join_store import ElasticDocuments, ElasticRows
from headrace_documents.elastic.mappings import Properties
from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Rows
from headrace_documents.indexes.plans import Indexes, IndexPlan
from headrace_documents.indexes.settings import PLACEHOLDER
from headrace_documents.joins.composing import Composer, rootless
from headrace_documents.joins.tree import Document, JoinTree, JoinTrees
from headrace_documents.messages import actions
from headrace_spark.settings import Settings
from headrace_spark.sink.writer import Context, SparkTask
from headrace_spark.source.connection import Source
from headrace_spark.source.reading import KeyRange, RowMaker, TableReader, inserted
from headrace_spark.source.tables import SourceTable, read_table, table_names
from headrace_spark.status.counting import Counts
from headrace_spark.transform.expressions import Expressions


class RowMessages:
    """Makes messages from the rows of TableRows; it is sent to the tasks."""

    def __init__(self, table: SourceTable, expressions: Expressions) -> None:
        self._maker, self._expressions = RowMaker(table), expressions

    def of(self, given: Iterable[Any]) -> Iterator[Rows]:
        """Yields all of them as inserted rows, a few in each."""
        if self._expressions:
            return self._maker.together(self._expressions.rows(given))
        return self._maker.messages(given)


class TableRows:
    """Reads rows for one index."""

    def __init__(self, settings: Settings, spark: SparkSession, name: str) -> None:
        """Raises ExpressionError."""
        own = [one for one in settings.index if one.name.lower() == name or PLACEHOLDER.search(one.name)]
        self._expressions = Expressions(settings.model_copy(update={"index": own}), spark)

    def read(self, reader: TableReader, ranges: Sequence[KeyRange]) -> RDD[Any]:
        """Returns the rows in the ranges, one task for each range. Raises SourceError."""
        rows = reader.read(ranges)
        if not self._expressions:
            return rows
        return self._expressions.of_rows(rows.mapPartitions(RowMaker(reader.table).rows))

    def messages(self, table: SourceTable) -> RowMessages:
        """Returns the converter of a table's rows to messages."""
        return RowMessages(table, self._expressions)


_EXAMPLES = 5
_HELD = 20_000
"""Documents that are composed before those removed meanwhile are checked."""


class Filled(NamedTuple):
    """The result of a task. `examples` are reasons of a few refused rows."""

    rows: int = 0
    refused: int = 0
    examples: tuple[str, ...] = ()

    def plus(self, other: Filled) -> Filled:
        """Returns the sum of both."""
        examples = (*self.examples, *other.examples)[:_EXAMPLES]
        return Filled(self.rows + other.rows, self.refused + other.refused, examples)


class Target:
    """The index `name`, and the one that is filled to replace it, with what makes documents from rows."""

    def __init__(self, settings: Settings, name: str, into: str) -> None:
        self.settings, self.name, self.into = settings, name, into
        tombstones = settings.elasticsearch.deletes == "tombstone"
        self._indexes = Indexes(settings.index, tombstones=tombstones)
        self._trees = JoinTrees(settings.index, tombstones=tombstones, dual_writes={name: into})
        self._rules = settings.elasticsearch.rules()

    @property
    def tree(self) -> JoinTree | None:
        """Returns the tree of an index with joins."""
        return self._trees.trees.get(self.into)

    def has(self, database: str, table: str) -> bool:
        """Returns whether it has rows of a table."""
        tree = self._trees.trees.get(self.name)
        if tree is not None:
            return bool(tree.nodes_of(database, table))
        declared = self._indexes.having(database, table)
        templates = [one.name for one in declared]
        joined = any(one.nodes_of(database, table) for one in self._trees.trees.values())
        if not declared and not joined and self.settings.takes_others:
            templates = [self.settings.elasticsearch.index]
        return any(_named(one, database, table) == self.name for one in templates)

    def tables(self, source: Source) -> list[SourceTable]:
        """Returns the tables of the source that it has rows of. Raises SourceError."""
        return [read_table(source, *one) for one in table_names(source) if self.has(*one)]

    def properties(self, table: SourceTable) -> list[Properties]:
        """Returns the mappings that the columns of a table need. Raises UnfitTable and MessageError."""
        message = inserted(table, [])
        if (tree := self.tree) is not None:
            return [one.properties for one in tree.plans(message)]
        return [one.properties for one in self._plans(message)]

    def _plans(self, message: Rows) -> list[IndexPlan]:
        return [one for one in self._indexes.plans(message) if one.target == self.name]

    def prepare(self, writer: BulkWriter, table: SourceTable) -> str:
        """Creates the index, or adds the fields of a table; returns why that can't be done. Raises BulkError,
        UnfitTable, IndexRefused and MessageError."""
        message, indexes = inserted(table, []), writer.indexes
        owner: tuple[str, ...] = ()
        if (tree := self.tree) is not None:
            for member in tree.plans(message):
                indexes.declare(tree.target, tree.settings, member.properties)
            indexes.declare_rows(tree.rows_index, tree)
            if why := indexes.unfit(tree.rows_index, ()):
                return why
        else:
            plans = self._plans(message)
            for plan in plans:
                indexes.declare(self.into, plan.settings, plan.properties)
            template = plans[0].settings.name if plans else self.settings.elasticsearch.index
            owner = index_owner(template, table.database, table.name)
        return indexes.unfit(self.into, owner)

    def actions(self, message: Rows) -> list[Action]:
        """Returns the actions for documents, or for kept rows. Raises MessageError."""
        if (tree := self.tree) is not None:
            return [one for plan in tree.plans(message) for change in plan.changes(message) for one in change.actions]
        if self._indexes.having(message.database, message.table):
            made = [one for plan in self._plans(message) for one in plan.actions(message)]
        else:
            made = [one for one in actions(message, self._rules) if one.target == self.name]
        return [one._replace(target=self.into) for one in made]


def _named(template: str, database: str, table: str) -> str:
    try:
        return index_name(template, database, table)
    except MessageError:
        return ""


class TargetTask(SparkTask):
    """A task for one target."""

    def __init__(self, settings: Settings, name: str, into: str) -> None:
        super().__init__(settings, Context(patience=settings.spark.patience))
        self._name, self._into = name, into

    def _run(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[Any]:
        yield from self._work(given, Target(self._settings, self._name, self._into), writer)

    @abstractmethod
    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[Any]:
        """Does the work."""


class Fill(TargetTask):
    """Writes rows of a table."""

    def __init__(self, settings: Settings, name: str, into: str, table: SourceTable, messages: RowMessages) -> None:
        super().__init__(settings, name, into)
        self._table, self._messages = table, messages

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[Filled]:
        target.prepare(writer, self._table)
        done, pending, size = Filled(), list[Action](), 0
        elastic = self._settings.elasticsearch
        for message in self._messages.of(given):
            made, refused = actions_of(target.actions, message)
            pending += made
            size += sum(len(value) for row in message.rows for value in row.values() if isinstance(value, str))
            done = done.plus(Filled(len(message.rows), len(refused), tuple(refused[:_EXAMPLES])))
            if len(pending) >= elastic.bulk_actions or size >= elastic.bulk_bytes:
                done = done.plus(_write(writer, pending))
                pending, size = [], 0
        yield done.plus(_write(writer, pending))


def actions_of(make: Callable[[Rows], list[Action]], message: Rows) -> tuple[list[Action], list[str]]:
    """Returns the actions, and why some of the rows have none."""
    try:
        return make(message), []
    except MessageError:
        pass
    made: list[Action] = []
    refused: list[str] = []
    for row in message.rows:  # one of them is the cause
        try:
            made += make(message._replace(rows=[row], olds=[None]))
        except MessageError as error:
            key = ", ".join(str(row.get(name)) for name in message.keys)
            refused.append(f"{message.database}.{message.table} ({key}): {error}")
    return made, refused


def _write(writer: BulkWriter, pending: Sequence[Action]) -> Filled:
    rejected = writer.write(pending)
    examples = tuple(f"document {pending[number].id}: {reason}" for number, reason in rejected[:_EXAMPLES])
    return Filled(0, len(rejected), examples)


class Compose(TargetTask):
    """Composes documents, given by their ids and routings."""

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[Filled]:
        tree = target.tree
        assert tree is not None
        rows, documents = ElasticRows(tree, writer), ElasticDocuments(tree, writer)
        done, held = Filled(), list[Document]()

        def compose() -> Filled:
            reasons = [f"document {one.id}: {why}" for one, why in Composer(tree, rows, documents).run(held)]
            # A row that was removed after we read the rows, and before the document existed, has left a document that
            # nothing deletes any more.
            rows.refresh()
            required = any(join.required for join in tree.settings.join)
            gone = list(held) if required else rootless(rows, held)
            list(Composer(tree, rows, documents).run(gone))
            return Filled(len(held), len(reasons), tuple(reasons[:_EXAMPLES]))

        for one in given:
            held.append(Document(*one))
            if len(held) >= _HELD:
                done = done.plus(compose())
                held.clear()
        yield done.plus(compose()) if held else done
