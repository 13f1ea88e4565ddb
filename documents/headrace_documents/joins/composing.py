"""Composes documents of several tables again when one of their rows has changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from headrace_documents.errors import BulkError
from headrace_documents.joins.tree import (
    Document,
    JoinTree,
    MemberRow,
    TooManyRows,
    document_token,
)

T = TypeVar("T")
PAGE = 500
"""Documents that are composed together."""
_ROWS = 50_000
"""Maximum rows of a page; with more it is composed in halves."""
_TRIES = 10
"""Attempts for a document that others write at the same time."""


class RowStore(ABC):
    """The rows that are kept."""

    @abstractmethod
    def get(self, names: Sequence[str]) -> list[MemberRow]:
        """Returns those of these ids that exist, as they are now; without their fields if requested. Raises
        BulkError."""

    @abstractmethod
    def find(self, tokens: Iterable[str], *, fields: bool) -> Iterator[list[MemberRow]]:
        """Yields pages of the rows that have one of the tokens, as they were at the last refresh(). Raises
        BulkError."""

    @abstractmethod
    def refresh(self) -> None:
        """Makes earlier writes visible. Raises BulkError."""


class Seen(NamedTuple):
    """The last write of a document: it is replaced only if that is still the last one."""

    number: int
    term: int


class Write(NamedTuple):
    """A write. `body` is None for a document that is removed; `seen` is None if there was none."""

    document: Document
    body: dict[str, Any] | None
    seen: Seen | None


class Outcome(NamedTuple):
    """The result of writes. `beaten` are documents that others have written meanwhile; `refused` those that were not
    accepted, and why."""

    beaten: list[Document]
    refused: list[tuple[Document, str]]


class Composed(NamedTuple):
    """A composed document: `body` is None if there is none; `refused` says why it can't be made."""

    document: Document
    body: dict[str, Any] | None
    refused: str = ""


class DocumentStore(ABC):
    """The documents of the index."""

    @abstractmethod
    def seen(self, documents: Sequence[Document]) -> dict[Document, Seen]:
        """Returns the last writes of existing documents. Raises BulkError."""

    @abstractmethod
    def write(self, writes: Sequence[Write]) -> Outcome:
        """Writes documents. Raises BulkError."""


def resolve(store: RowStore, tokens: Mapping[str, T]) -> Iterator[tuple[Document, T]]:
    """Yields the documents to which rows with these tokens belong, each with what is given with its token; some may
    come twice. Keeps one page of rows for each join on the way. Raises BulkError."""
    for page in store.find(tokens, fields=False):
        above: dict[str, T] = {}
        for row in page:
            touched, given = row.touches(), next(tokens[one] for one in row.tokens if one in tokens)
            if isinstance(touched, Document):
                yield touched, given
            elif touched is not None:
                above.setdefault(touched, given)
        if above:
            yield from resolve(store, above)


def rootless(store: RowStore, documents: Iterable[Document]) -> list[Document]:
    """Returns those of which no row is kept. Raises BulkError."""
    tokens = {document_token(one): one for one in documents}
    for page in store.find(list(tokens), fields=False):
        for row in page:
            for token in row.tokens:
                tokens.pop(token, None)
    return list(tokens.values())


class Composer:
    """Composes documents of one index and writes them.

    A document is read before the rows, and written only if nobody has written it since: a process that composed it from
    older rows is too late, however long it took."""

    def __init__(self, tree: JoinTree, rows: RowStore, documents: DocumentStore) -> None:
        self._tree, self._rows, self._documents = tree, rows, documents
        self.composed = 0

    def run(self, documents: Iterable[Document]) -> Iterator[tuple[Document, str]]:
        """Yields the documents that can't be written, and why. Raises BulkError."""
        left = iter(documents)
        while page := list(islice(left, PAGE)):
            yield from self._page(page)

    def _page(self, page: list[Document]) -> Iterator[tuple[Document, str]]:
        for attempt in range(_TRIES):
            if attempt:
                self._rows.refresh()  # the faster process has read newer rows
            seen = self._documents.seen(page)
            gathered = self._gather(page)
            if gathered is None:
                middle = len(page) // 2
                yield from self._page(page[:middle])
                yield from self._page(page[middle:])
                return
            writes, refused = self._compose(page, seen, *gathered)
            outcome = self._documents.write(writes) if writes else Outcome([], [])
            yield from refused
            yield from outcome.refused
            self.composed += len(writes) - len(outcome.beaten)
            page = outcome.beaten
            if not page:
                return
        raise BulkError(f"document {page[0].id} of index {self._tree.target} is written by others again and again")

    def _compose(
        self,
        page: list[Document],
        seen: dict[Document, Seen],
        roots: dict[str, list[MemberRow]],
        joined: dict[str, list[MemberRow]],
    ) -> tuple[list[Write], list[tuple[Document, str]]]:
        writes: list[Write] = []
        refused: list[tuple[Document, str]] = []
        for document, body, why in self._bodies(page, roots, joined):
            if why:
                refused.append((document, why))
            elif body is not None or document in seen:
                writes.append(Write(document, body, seen.get(document)))
        return writes, refused

    def bodies(self, page: list[Document]) -> Iterator[Composed]:
        """Yields documents made from rows, without writing them. Raises BulkError."""
        gathered = self._gather(page)
        if gathered is not None:
            yield from self._bodies(page, *gathered)
            return
        middle = len(page) // 2
        yield from self.bodies(page[:middle])
        yield from self.bodies(page[middle:])

    def _bodies(
        self, page: list[Document], roots: dict[str, list[MemberRow]], joined: dict[str, list[MemberRow]]
    ) -> Iterator[Composed]:
        for document in page:
            try:
                body = self._tree.compose(roots.get(document_token(document), ()), joined)
            except TooManyRows as error:
                yield Composed(document, None, str(error))
                continue
            yield Composed(document, body if body is not None else self._tree.gone)

    def _gather(self, page: list[Document]) -> tuple[dict[str, list[MemberRow]], dict[str, list[MemberRow]]] | None:
        """Returns the documents' own rows by token, and all rows below by token; None if these are too many at once."""
        roots: dict[str, list[MemberRow]] = {document_token(one): [] for one in page}
        joined: dict[str, list[MemberRow]] = {}
        level, held = self._add(roots, roots), 0
        while wanted := self._tree.wanted(level) - joined.keys():
            below: dict[str, list[MemberRow]] = {token: [] for token in wanted}
            joined |= below
            level = self._add(below, wanted)
            held += len(level)
            if held > _ROWS and len(page) > 1:
                return None
        return roots, joined

    def _add(self, found: dict[str, list[MemberRow]], tokens: Iterable[str]) -> list[MemberRow]:
        """Adds rows to the tokens by which they are found, at most one more than allowed; returns them all."""
        kept: list[MemberRow] = []
        for page in self._rows.find(list(tokens), fields=True):
            for row in page:
                rows = next(found[one] for one in row.tokens if one in found)
                if len(rows) <= self._tree.most(row.node):
                    rows.append(row)
                    kept.append(row)
        return kept
