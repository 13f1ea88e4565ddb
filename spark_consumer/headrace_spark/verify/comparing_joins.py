"""What a Spark task does with documents of several tables: it compares them with what the rows that are kept make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from headrace_documents.documents import DELETED
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.join_store import ElasticDocuments, ElasticRows
from headrace_documents.joins.composing import Composer, rootless
from headrace_documents.joins.tree import Document, JoinTree
from headrace_spark.rebuild.filling import Target, TargetTask
from headrace_spark.settings.settings import Settings
from headrace_spark.verify.comparing import difference_of
from headrace_spark.verify.differences import Compared, Difference, Differences

_PAGE = 100
"""Documents that are read together: of a list with many rows each is large."""
_IDS = 1000


class CompareComposed(TargetTask):
    """Compares documents, of which it is given ids and routings. `before` are the differences of a look before; with
    `repair` those that are as they were then are composed anew. That is what the stream does too: whoever has read the
    rows later wins."""

    def __init__(
        self, settings: Settings, name: str, before: Differences | None = None, *, repair: bool = False
    ) -> None:
        super().__init__(settings, name, name)
        self._before, self._repairs = before or {}, repair

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[Compared]:
        tree, left = target.tree, iter(given)
        assert tree is not None
        composer = Composer(tree, ElasticRows(tree, writer), ElasticDocuments(tree, writer))
        total = Compared()
        while page := [Document(*one) for one in islice(left, _PAGE)]:
            total = total.plus(self._page(tree, writer, composer, page))
        yield total

    def _page(self, tree: JoinTree, writer: BulkWriter, composer: Composer, page: list[Document]) -> Compared:
        ids, routings, index = [one.id for one in page], [one.routing for one in page], tree.target
        answers = writer.ask(index, lambda: writer.cluster.get_many(index, ids, source=True, routings=routings))
        there = dict(zip(page, answers, strict=True))
        differences: list[Difference] = []
        found = refused = 0
        for document, body, why in composer.bodies(page):
            answer = there[document]
            if why:
                refused += 1
                continue
            if body is not None and DELETED in body:
                body = None
            source = answer.get("_source")
            source = None if source is None or DELETED in source else source
            found += body is not None and source is not None
            difference = difference_of(*document, body, answer, source)
            if difference is not None:
                differences.append(difference)
        same = [Document(*one.place) for one in differences if one.is_written_as(self._before.get(one.place))]
        repaired = 0
        if self._repairs and same:
            repaired = len(same) - len(list(composer.run(same)))
        return Compared(len(page), found, refused, repaired, False, tuple(differences))


class Rootless(TargetTask):
    """Of documents, of which it is given ids and routings: those of which no row is kept."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name, name)

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[tuple[str, str]]:
        tree, left = target.tree, iter(given)
        assert tree is not None
        rows = ElasticRows(tree, writer)
        while page := [Document(*one) for one in islice(left, _IDS)]:
            yield from rootless(rows, page)
