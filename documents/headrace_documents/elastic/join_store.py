"""The rows and documents of joins in Elasticsearch or OpenSearch."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

from headrace_documents.elastic.bulk import BulkWriter, Swap
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ask
from headrace_documents.joins.composing import DocumentStore, Outcome, RowStore, Seen, Write
from headrace_documents.joins.tree import ROOT, WITHOUT_FIELDS, Document, JoinTree, MemberRow, stored_row

_TOKENS = 1000
"""Tokens of one search."""
_HITS = 2000
"""Hits of one page."""


class ElasticRows(RowStore):
    """The index of rows of one index with joins. It must exist."""

    def __init__(self, tree: JoinTree, writer: BulkWriter) -> None:
        self._index, self._writer, self._cluster = tree.rows_index, writer, writer.cluster

    def get(self, names: Sequence[str]) -> list[MemberRow]:
        found = self._writer.ask(self._index, lambda: self._cluster.get_many(self._index, names, WITHOUT_FIELDS))
        return [stored_row(one["_id"], one["_source"]) for one in found if one["found"]]

    def find(self, tokens: Iterable[str], *, fields: bool) -> Iterator[list[MemberRow]]:
        left = iter(tokens)
        source = True if fields else WITHOUT_FIELDS
        while some := list(islice(left, _TOKENS)):
            query = {"constant_score": {"filter": {"terms": {"j": some}}}}
            search = {"query": query, "size": _HITS, "_source": source, "sort": ["_doc"], "track_total_hits": False}
            hits = self._writer.ask(self._index, partial(self._search, search))
            found = hits["hits"]["hits"]
            if len(found) < _HITS:
                if found:
                    yield [stored_row(one["_id"], one["_source"]) for one in found]
                continue
            pages = self._cluster.search_pages(self._index, query, size=_HITS, source=source)
            with closing(pages):
                while page := ask(self._index, partial(next, pages, None)):  # a repeated batch starts it again
                    yield [stored_row(one["_id"], one["_source"]) for one in page]

    def _search(self, search: dict[str, Any]) -> Any:
        # A shard that does not answer is an error: documents without its rows would look complete.
        path = (self._index, "_search")
        return self._cluster.call("POST", path, search, allow_partial_search_results="false")

    def refresh(self) -> None:
        self._writer.ask(self._index, lambda: self._cluster.refresh(self._index))


def root_documents(cluster: Cluster, tree: JoinTree) -> Generator[Document, None, None]:
    """Yields the documents that rows of the index's own tables are kept for, as of one moment. Close it if it is left
    before its end. Raises ApiError and TransportError."""
    with closing(cluster.search_pages(tree.rows_index, {"term": {"n": ROOT}}, size=_HITS, source=["o"])) as pages:
        for page in pages:
            for hit in page:
                if document := hit["_source"].get("o"):  # a row that was removed has none
                    yield Document(*document)


class ElasticDocuments(DocumentStore):
    """The documents of one index with joins."""

    def __init__(self, tree: JoinTree, writer: BulkWriter) -> None:
        self._index, self._writer, self._cluster = tree.target, writer, writer.cluster

    def seen(self, documents: Sequence[Document]) -> dict[Document, Seen]:
        ids, routings = [one.id for one in documents], [one.routing for one in documents]
        found = self._writer.ask(
            self._index, lambda: self._cluster.get_many(self._index, ids, source=False, routings=routings)
        )
        return {
            document: Seen(one["_seq_no"], one["_primary_term"])
            for document, one in zip(documents, found, strict=True)
            if one["found"]
        }

    def write(self, writes: Sequence[Write]) -> Outcome:
        beaten, rejected = self._writer.swap([_swap(self._index, one) for one in writes])
        return Outcome(
            [writes[number].document for number in beaten],
            [(writes[number].document, reason) for number, reason in rejected],
        )


def _swap(index: str, write: Write) -> Swap:
    document, body, seen = write
    where: dict[str, Any] = {"_index": index, "_id": document.id}
    if document.routing:
        where["routing"] = document.routing
    if seen is not None:
        where |= {"if_seq_no": seen.number, "if_primary_term": seen.term}
    return Swap(where, body)
