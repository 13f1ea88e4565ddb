"""The work of a Spark task on rows that are compared with documents: it reports differences, or repairs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace_documents.documents import DELETED, Action
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.join_store import ElasticDocuments, ElasticRows
from headrace_documents.errors import BulkError
from headrace_documents.joins.composing import Composer, resolve
from headrace_documents.joins.tree import Document, JoinTree, Touched, keep_former, stored_row
from headrace_spark.rebuild.filling import RowMessages, Target, TargetTask, actions_of
from headrace_spark.settings import Settings
from headrace_spark.source.tables import SourceTable
from headrace_spark.verify.differences import (
    DIFFERENT,
    DOCUMENT,
    EXTRA,
    MISSING,
    ROW,
    Compared,
    Difference,
    Differences,
    as_written,
    differing_fields,
)

MOST = 1000
"""Maximum differences that a task reports; beyond that it only reports that there are more."""
_PAGE = 500
_FORMER = "f"
"""The field of a kept row that is not part of the row itself."""


class Compare(TargetTask):
    """Compares rows with documents; in an index with joins, with the kept rows. `before` are the differences of an
    earlier check: only these are checked, and what has not changed since is repaired.

    The document is read first, the row after it. So the row is not older than the document, and while the version of
    the document is the same nobody has written it since. A document that differs is written with the version that it
    has, so that each newer change of the stream wins. A missing one is written with version 1. If Elasticsearch
    remembers a delete, the next check has its version, and reads the row after that."""

    def __init__(
        self, settings: Settings, name: str, table: SourceTable, messages: RowMessages,
        before: Differences | None = None, *, repair: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(settings, name, name)
        self._table, self._messages, self._before, self._repairs = table, messages, before, repair

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[Compared]:
        if self._repairs and (why := target.prepare(writer, self._table)):
            raise BulkError(why)
        total, pending, size = Compared(), list[Action](), 0
        most = self._settings.elasticsearch.bulk_bytes
        for message in self._messages.of(given):
            size += sum(len(value) for row in message.rows for value in row.values() if isinstance(value, str))
            made, refused = actions_of(target.actions, message)
            pending += made
            total = total.plus(Compared(rows=len(message.rows), refused=len(refused)))
            if len(pending) >= _PAGE or size >= most:
                total = total.plus(self._page(target, writer, pending)).bounded(MOST)
                pending, size = [], 0
        yield total.plus(self._page(target, writer, pending)).bounded(MOST)

    def _page(self, target: Target, writer: BulkWriter, pending: Sequence[Action]) -> Compared:
        if self._before is not None:
            pending = [one for one in pending if (one.id, one.routing) in self._before]
        if not pending:
            return Compared()
        ids, routings, index = [one.id for one in pending], [one.routing for one in pending], pending[0].target
        there = writer.ask(index, lambda: writer.cluster.get_many(index, ids, source=True, routings=routings))
        differences: list[Difference] = []
        repairs: list[tuple[Action, Difference, dict[str, Any]]] = []
        found = 0
        compare = _document_difference if target.tree is None else _row_difference
        for action, document in zip(pending, there, strict=True):
            found += bool(document["found"]) and action.body is not None
            difference = compare(action, document)
            if difference is None:
                continue
            before = (self._before or {}).get(difference.place)
            if self._repairs and difference.is_written_as(before):
                if difference.kind == MISSING and before is not None:
                    difference = difference._replace(version=before.version)
                repairs.append((action, difference, document))
            else:
                differences.append(difference)
        repaired = self._repair(target, writer, repairs, differences) if repairs else 0
        return Compared(0, found, 0, repaired, False, tuple(differences))

    def _repair(
        self, target: Target, writer: BulkWriter, repairs: Sequence[tuple[Action, Difference, dict[str, Any]]],
        differences: list[Difference],
    ) -> int:  # fmt: skip
        """Writes what differs, and adds it to `differences`, so that it is checked again."""
        wanted = [action._replace(version=max(1, difference.version)) for action, difference, _ in repairs]
        touched: dict[Touched, None] = {}
        if target.tree is not None:
            touched = dict.fromkeys(_touched(wanted, [document for _, _, document in repairs]))
        rejected = {one.number for one in writer.write(wanted)}
        if target.tree is not None:
            compose(target.tree, writer, touched)
        for number, (_, difference, _) in enumerate(repairs):
            version = writer.newer.get(number, difference.version)
            differences.append(difference._replace(version=version) if difference.kind == MISSING else difference)
        return len(wanted) - len(rejected) - len(writer.newer)


def compose(tree: JoinTree, writer: BulkWriter, touched: Iterable[Touched]) -> list[str]:
    """Composes the documents that rows touch, as the stream does; returns why some were refused. Raises BulkError."""
    rows, documents = ElasticRows(tree, writer), ElasticDocuments(tree, writer)
    rows.refresh()
    some = list(touched)
    wanted = dict.fromkeys(one for one in some if isinstance(one, Document))
    tokens = {one: None for one in some if not isinstance(one, Document)}
    wanted |= dict.fromkeys(document for document, _ in resolve(rows, tokens))
    return [f"document {one.id}: {why}" for one, why in Composer(tree, rows, documents).run(wanted)]


def _touched(wanted: Sequence[Action], there: Sequence[dict[str, Any]]) -> Iterator[Touched]:
    """Yields what the rows touch now and as kept; the latter is recorded in what must be kept."""
    kept = {one["_id"]: stored_row(one["_id"], one["_source"]) for one in there if one["found"]}
    yield from keep_former(wanted, kept)
    for action in wanted:
        if action.body is not None and "d" in action.body:
            touched = stored_row(action.id, action.body).touches()
            if touched is not None:
                yield touched


def _document_difference(action: Action, document: dict[str, Any]) -> Difference | None:
    body = None if action.body is None or DELETED in action.body else action.body
    source = document.get("_source")
    return difference_of(action.id, action.routing, body, document, None if source and DELETED in source else source)


def difference_of(
    name: str, routing: str, body: dict[str, Any] | None, document: dict[str, Any], source: dict[str, Any] | None
) -> Difference | None:
    """Returns the difference of a document that should be `body`, None for nothing, and is `source`. `document` is the
    answer that has it."""
    return _difference(DOCUMENT, (name, routing), body, document["_version"] if document["found"] else 0, source)


def _row_difference(action: Action, document: dict[str, Any]) -> Difference | None:
    """Returns the difference of a row. Deleted rows leave marks without fields if `deletes` is "tombstone"."""
    body, source = action.body, document.get("_source")
    body = body if body is not None and "d" in body else None
    if source is not None:
        source = {name: one for name, one in source.items() if name != _FORMER} if "d" in source else None
    version = document["_version"] if document["found"] else 0
    found = _difference(ROW, (action.id, action.routing), body, version, source)
    if found is None or found.kind != DIFFERENT or body is None or source is None:
        return found
    inner = differing_fields(as_written(body)[0]["d"], source["d"])
    return found._replace(fields=inner or found.fields)


def _difference(
    of: str, place: tuple[str, str], body: dict[str, Any] | None, version: int, source: dict[str, Any] | None
) -> Difference | None:
    if body is None:
        return None if source is None else Difference(of, EXTRA, *place, (), 0, version)
    wanted, number = as_written(body)
    if source is None:
        return Difference(of, MISSING, *place, (), number, version)  # or there is the mark of a delete
    fields = differing_fields(wanted, source)
    return Difference(of, DIFFERENT, *place, fields, number, version) if fields else None
