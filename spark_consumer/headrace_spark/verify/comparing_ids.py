"""Documents that no row makes: the ids of both sides, as Spark's tasks have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

from headrace_documents.documents import DELETED
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.errors import ask
from headrace_spark.rebuild.filling import Target, TargetTask, actions_of
from headrace_spark.rebuild.table_rows import RowMessages
from headrace_spark.settings.settings import Settings
from headrace_spark.verify.differences import Place

_IDS = 5000

LastWrite = tuple[int, int, int]
"""Version, number and term of the last write of a document."""


class RowIds(TargetTask):
    """The ids that rows of a table have. Of a row that can't be a document nothing is known."""

    def __init__(self, settings: Settings, name: str, messages: RowMessages) -> None:
        super().__init__(settings, name, name)
        self._messages = messages

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[tuple[Place, None]]:
        for message in self._messages.of(given):
            for action in actions_of(target.actions, message)[0]:
                yield (action.id, action.routing), None


class DocumentIds(TargetTask):
    """The ids of all documents but the marks of deleted ones; or of the rows that are kept for joins, and belong to
    something. `tables` are those that are compared: what says that it is of another is left out. It is given the
    parts that it reads, and their moment: (number, how many there are, moment)."""

    def __init__(self, settings: Settings, name: str, tables: Collection[str], field: str) -> None:
        """`field` is that which says the table, "" for none."""
        super().__init__(settings, name, name)
        self._tables, self._field = frozenset(tables), field

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[tuple[Place, LastWrite]]:
        tree, field = target.tree, self._field
        index = target.into if tree is None else tree.rows_index
        source = [one for one in (DELETED, field, "j" if tree is not None else "") if one]
        search = partial(writer.cluster.search_pages, index, size=_IDS, source=source, version=True, seq_no=True)
        for number, parts, moment in given:
            with closing(search(part=(number, parts), moment=moment)) as pages:
                while page := ask(index, partial(next, pages, None)):
                    for hit in page:
                        has = hit["_source"]
                        if DELETED in has or (tree is not None and not has.get("j")):
                            continue
                        if not field or has.get(field) in self._tables:
                            last = hit["_version"], hit["_seq_no"], hit["_primary_term"]
                            yield (hit["_id"], hit.get("_routing", "")), last
