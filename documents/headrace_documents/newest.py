"""Writes only the newest of many changes to one document; an older one if Elasticsearch refuses that."""

from __future__ import annotations

from bisect import insort
from typing import Generic, NamedTuple, TypeVar

from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter

T = TypeVar("T")


class Refused(NamedTuple, Generic[T]):
    """An action that Elasticsearch will never accept, its message, and why."""

    action: Action
    message: T
    reason: str


class Newest(Generic[T]):
    """Collects actions, each with its message. `len()` is the number of documents."""

    def __init__(self) -> None:
        self._documents: dict[tuple[object, ...], list[tuple[Action, T]]] = {}

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, action: Action, message: T) -> None:
        """Adds an action. At the same version (one row: delete of the old key, index of the new) the later wins."""
        entry = (action, message)
        changes = self._documents.setdefault((action.target, action.owner, action.id, action.routing), [entry])
        if changes[0] is entry:
            return
        if action.version >= changes[-1][0].version:
            changes.append(entry)
        else:
            insort(changes, entry, key=lambda known: known[0].version)

    def write(self, writer: BulkWriter) -> list[Refused[T]]:
        """Writes the newest action of each document, and starts empty again; returns what was refused.

        After a refused action the next older one of its document is tried, so that what is written does not depend on
        which changes were collected together. Raises BulkError; then nothing is forgotten."""
        refused: list[Refused[T]] = []
        documents = list(self._documents.values())
        while documents:
            heads = [changes[-1] for changes in documents]
            rejected = writer.write([action for action, _ in heads])
            refused += [Refused(*heads[number], reason) for number, reason in rejected]
            documents = [documents[number][:-1] for number, _ in rejected if len(documents[number]) > 1]
        self._documents.clear()
        return refused
