"""Removes documents and kept rows of truncated tables that are older than the truncation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import structlog

from headrace_documents.documents import TOMBSTONE, Action, index_name, index_owner
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.errors import BulkError, MessageError, ask
from headrace_documents.formats.changes import Statement
from headrace_documents.indexes.plans import Indexes
from headrace_documents.indexes.projection import UnfitTable
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.joins.tree import WITHOUT_FIELDS, JoinTree, JoinTrees, Touched, stored_row, truncated_row
from headrace_documents.settings import ElasticsearchSettings

_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s`\".,;/*(]+)"
_DROP = re.compile(
    rf"(?:/\*.*?\*/|\s)*DROP\s+(?P<temporary>TEMPORARY\s+)?TABLES?\s+(?:IF\s+EXISTS\s+)?"
    rf"(?P<names>{_NAME}(?:\s*\.\s*{_NAME})?(?:\s*,\s*{_NAME}(?:\s*\.\s*{_NAME})?)*)",
    re.IGNORECASE | re.DOTALL,
)
_REPLACE = re.compile(r"(?:/\*.*?\*/|\s)*CREATE\s+OR\s+REPLACE\s+TABLE\b", re.IGNORECASE | re.DOTALL)
"""MariaDB's: it drops the existing table."""
_ONE = re.compile(rf"({_NAME})(?:\s*\.\s*({_NAME}))?")
_PARTITIONS = re.compile(r"\b(?:DROP|TRUNCATE|EXCHANGE|DISCARD|IMPORT)\s+PARTITION\b", re.IGNORECASE)
_DATABASE = re.compile(r"(?:/\*.*?\*/|\s)*DROP\s+(?:DATABASE|SCHEMA)\b", re.IGNORECASE | re.DOTALL)


class TruncatedTables(NamedTuple):
    """All rows of these tables that are older than `version` are gone."""

    tables: tuple[tuple[str, str], ...]
    version: int


def truncated(statement: Statement) -> TruncatedTables | None:
    """Returns the tables that a statement truncates; None if it truncates none. Raises MessageError for a statement
    that removes rows without saying which."""
    kind, sql = statement.kind, statement.sql
    if kind == "TRUNCATE":
        return TruncatedTables(((statement.database, statement.table),), statement.version)
    if kind == "ERASE":
        found = _DROP.match(sql)
        if found is None:
            return TruncatedTables(((statement.database, statement.table),), statement.version)
        if found["temporary"]:
            return None
        return TruncatedTables(tuple(_names(found["names"], statement)), statement.version)
    if kind == "CREATE" and _REPLACE.match(sql):
        return TruncatedTables(((statement.database, statement.table),), statement.version)
    if _DATABASE.match(sql):
        raise MessageError(
            f"the documents of database {statement.database} are still there, and the database is dropped: delete "
            "their indexes"
        )
    if kind == "ALTER" and _PARTITIONS.search(sql):
        raise MessageError(
            f"partitions of {statement.database}.{statement.table} were emptied or exchanged, and nothing says which "
            "rows that were: compare table and index, and repair"
        )
    return None


def _names(text: str, statement: Statement) -> list[tuple[str, str]]:
    made = []
    for first, second in _ONE.findall(text):
        made.append((_plain(first), _plain(second)) if second else (statement.database, _plain(first)))
    return made


def _plain(name: str) -> str:
    quote = name[0]  # a double one with the SQL mode ANSI_QUOTES
    return name[1:-1].replace(quote * 2, quote) if quote in '`"' else name


log = structlog.get_logger(__name__)
_PAGE = 2000
_LITERAL = re.compile(r"(?:[\w$-]|\\[.$-])+")
"""A regular expression that matches one name."""


class Truncation(NamedTuple):
    """Removes the documents of `table` (database.table) in the index `target` that are older than `version`. `declared`
    is its name in [[index]], "" for none; with `joined` these are rows that are kept for joins."""

    target: str
    owner: tuple[str, ...]
    table: str
    version: int
    declared: str
    joined: bool


class TruncationPlan:
    """What must be truncated with a table."""

    def __init__(
        self, settings: ElasticsearchSettings, indexes: Indexes, trees: JoinTrees, *, takes_others: bool
    ) -> None:
        self._settings, self._indexes, self._trees, self._takes_others = settings, indexes, trees, takes_others

    def of(self, statement: Statement) -> list[Truncation] | None:
        """Returns the truncations; None if the statement truncates no table. Raises UnfitTable if it must stop the
        consumer, or if a document's table is unknown, and MessageError for a statement whose rows are unknown, or a
        name that no index has."""
        found = truncated(statement)
        if found is None:
            return None
        if not found.version:
            raise MessageError(f"{statement.database}.{statement.table} was emptied, and the message has no position")
        return [one for table in found.tables for one in self._of(*table, found.version)]

    def _of(self, database: str, table: str, version: int) -> list[Truncation]:
        name = f"{database}.{table}"
        made: list[Truncation] = []
        declared = self._indexes.having(database, table)
        for one in declared:
            if self._wanted(one, name):
                target, owner = index_name(one.name, database, table), index_owner(one.name, database, table)
                if not (_has_one_table(one) or one.table_field):
                    raise _undecided(name, f"index {target}", "set table_field, and refill the index")
                made.append(Truncation(target, owner, name, version, one.name, joined=False))
        joined = [one for one in self._trees.trees.values() if one.nodes_of(database, table)]
        for tree in joined:
            if self._wanted(tree.settings, name):
                made.append(Truncation(tree.target, (), name, version, tree.settings.name, joined=True))
        if not declared and not joined and self._takes_others and self._wanted(None, name):
            template = self._settings.index
            target, owner = index_name(template, database, table), index_owner(template, database, table)
            if len(owner) < 2:
                raise _undecided(name, f"index {target}", "declare it with [[index]] and table_field")
            made.append(Truncation(target, owner, name, version, "", joined=False))
        return made

    def _wanted(self, index: IndexSettings | None, table: str) -> bool:
        wanted = (index.on_truncate if index is not None else None) or self._settings.on_truncate
        if wanted == "refuse":
            raise UnfitTable(
                f"{table} was emptied by TRUNCATE or DROP, and on_truncate is refuse: set it to delete or ignore to go "
                "on"
            )
        if wanted == "ignore":
            log.warning("a table was emptied, and its documents stay: on_truncate is ignore", table=table)
        return wanted == "delete"


def _undecided(table: str, where: str, remedy: str) -> UnfitTable:
    return UnfitTable(
        f"{table} was emptied by TRUNCATE or DROP, and nothing says which documents of {where} are its: {remedy}; or "
        'set on_truncate = "ignore"'
    )


def _has_one_table(index: IndexSettings) -> bool:
    return len(index_owner(index.name, "d", "t")) == 2 or (
        len(index.tables) == 1 and _LITERAL.fullmatch(index.tables[0]) is not None
    )


def not_truncated(writer: BulkWriter, wanted: list[Action], table: str) -> list[Action]:
    """Returns the actions without those that are older than the last TRUNCATE or DROP of their table, according to
    their indexes. Raises BulkError."""
    if len(wanted) == 1:
        return wanted if wanted[0].version >= _truncated_at(writer, wanted[0], table) else []
    since: dict[str, int] = {}
    for one in wanted:
        if one.target not in since:
            since[one.target] = _truncated_at(writer, one, table)
    if not any(since.values()):
        return wanted
    return [one for one in wanted if one.version >= since[one.target]]


def _truncated_at(writer: BulkWriter, action: Action, table: str) -> int:
    indexes, index = writer.indexes, action.target
    truncated = indexes.truncated(index)
    if truncated is None:
        writer.ask(index, lambda: indexes.unfit(index, action.owner))  # which checks it
        truncated = indexes.truncated(index)
    return truncated.get(table, 0) if truncated else 0


def _rest(truncation: Truncation) -> str:
    """Returns the marker that replaces the table in the rest of a row. No name of a table ends with a space."""
    return f"{truncation.table} "


class Truncator:
    """Truncates indexes."""

    def __init__(
        self, settings: ElasticsearchSettings, declared: Mapping[str, IndexSettings], writer: BulkWriter
    ) -> None:
        self._declared, self._writer, self._cluster = declared, writer, writer.cluster
        self._tombstones = settings.deletes == "tombstone"

    def documents(self, truncation: Truncation) -> None:
        """Deletes the older documents of the table. Raises BulkError."""
        index = self._declared.get(truncation.declared)
        if index is not None:
            self._writer.indexes.declare(truncation.target, index, {})
        self._prepare(truncation.target, truncation)
        query = {"term": {index.table_field: truncation.table}} if index is not None and index.table_field else None
        count = 0
        for page in self._pages(truncation.target, query, source=False):
            count += len(page)
            self._delete(truncation.target, page, truncation, [TOMBSTONE if self._tombstones else None] * len(page))
        self._report(truncation.target, truncation, count)

    def rows(self, truncation: Truncation, tree: JoinTree) -> Iterator[Touched]:
        """Does the same for rows that are kept for joins; yields what they affected, once they are gone.

        The rest of each row has what it affected, until sweep(): a repeated batch finds it."""
        self._writer.indexes.declare(tree.target, tree.settings, {})
        self._writer.indexes.declare_rows(tree.rows_index, tree)
        self._require(tree.target, truncation)  # processes that compose documents read it
        self._prepare(tree.rows_index, truncation)
        count = 0
        query = {"terms": {"t": [truncation.table, _rest(truncation)]}}
        for page in self._pages(tree.rows_index, query, source=WITHOUT_FIELDS):
            count += len(page)
            rows = [stored_row(hit["_id"], hit["_source"]) for hit in page]
            left = [truncated_row(_rest(truncation), row) for row in rows]
            self._delete(tree.rows_index, page, truncation, left)
            for row in rows:
                yield from row.touched()
        self._report(tree.rows_index, truncation, count)

    def sweep(self, truncation: Truncation, tree: JoinTree) -> None:
        """Deletes the rest of rows(), once all that it yielded is composed. Raises BulkError."""
        index = tree.rows_index
        self._writer.indexes.declare(tree.target, tree.settings, {})
        self._writer.indexes.declare_rows(index, tree)
        self._writer.ask(index, lambda: self._cluster.refresh(index))
        gone = {"t": truncation.table, "n": "", "j": ()} if self._tombstones else None
        for page in self._pages(index, {"term": {"t": _rest(truncation)}}, source=False):
            self._delete(index, page, truncation, [gone] * len(page))

    def _prepare(self, index: str, truncation: Truncation) -> None:
        indexes = self._writer.indexes
        self._require(index, truncation)
        # First: older changes that come later are already gone.
        self._writer.ask(index, lambda: indexes.note_truncated(index, truncation.table, truncation.version))
        self._writer.ask(index, lambda: self._cluster.refresh(index))

    def _require(self, index: str, truncation: Truncation) -> None:
        indexes = self._writer.indexes
        if why := self._writer.ask(index, lambda: indexes.unfit(index, truncation.owner)):
            raise BulkError(f"{truncation.table} was emptied, and its documents can't be deleted: {why}")

    def _pages(self, index: str, query: dict[str, Any] | None, source: Any) -> Iterator[list[dict[str, Any]]]:
        with closing(self._cluster.search_pages(index, query, size=_PAGE, source=source)) as pages:
            while page := ask(index, partial(next, pages, None)):
                yield page

    def _delete(
        self, index: str, page: list[dict[str, Any]], truncation: Truncation, left: Sequence[dict[str, Any] | None]
    ) -> None:
        """`left` is the rest of each document, None for nothing."""
        version, owner = truncation.version, truncation.owner
        rejected = self._writer.write(
            [
                Action(index, hit["_id"], version, body, 0, owner, hit.get("_routing", ""))
                for hit, body in zip(page, left, strict=True)
            ]
        )
        if rejected:
            raise BulkError(
                f"documents of {truncation.table}, which was emptied, can't be deleted: {rejected[0].reason}"
            )

    def _report(self, index: str, truncation: Truncation, count: int) -> None:
        log.info("a table was emptied: its documents are gone", table=truncation.table, index=index, documents=count)
