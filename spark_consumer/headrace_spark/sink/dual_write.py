"""While an index is rebuilt, the consumer writes each change of it to the new one too."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import structlog

from headrace_documents.documents import Action
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError, BulkError, TransportError
from headrace_documents.settings import ElasticsearchSettings
from headrace_documents.truncate import Truncation

INDEX = "headrace-rebuilds"
_MOST = 1000
_BODY = {
    "settings": {"index.number_of_shards": 1, "index.auto_expand_replicas": "0-1"},
    "mappings": {"dynamic": False},
}
Note = dict[str, Any]
"""The note of a rebuild: `into`, the index that is filled; `run`, the process that does it; its progress; `consumer`,
what the consumer has recorded."""


class Notes:
    """The notes in Elasticsearch, by the name of the index that is rebuilt. The methods raise ApiError and
    TransportError; each answer has the limit `timeout` in seconds."""

    def __init__(self, cluster: Cluster, timeout: float | None = None) -> None:
        self._cluster, self._timeout = cluster, timeout

    def all(self) -> dict[str, Note]:
        """Returns the notes of all rebuilds."""
        search = {"size": _MOST, "query": {"match_all": {}}}
        path, more = (INDEX, "_search"), {"ignore_unavailable": "true", "allow_partial_search_results": "false"}
        found = self._cluster.call("POST", path, search, timeout=self._timeout, **more)
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}

    def get(self, name: str) -> Note | None:
        """Returns the present note of one rebuild."""
        found = self._cluster.call("GET", (INDEX, "_doc", name), timeout=self._timeout, missing={})
        note: Note | None = found.get("_source")
        return note

    def begin(self, name: str, note: Note) -> bool:
        """Records that a rebuild begins; returns false if there is one already."""
        self._cluster.create_index(INDEX, _BODY)
        try:
            self._cluster.call("PUT", (INDEX, "_create", name), note, refresh="true")
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    def update(self, name: str, **fields: Any) -> bool:
        """Changes some fields, and leaves those that others write; returns false if the note no longer exists."""
        path, more = (INDEX, "_update", name), {"refresh": "true", "retry_on_conflict": 10}
        found = self._cluster.call("POST", path, {"doc": fields}, timeout=self._timeout, missing=None, **more)
        return found is not None

    def remove(self, name: str) -> None:
        """Removes the note: the rebuild is over."""
        self._cluster.call("DELETE", (INDEX, "_doc", name), missing=None, refresh="true")


log = structlog.get_logger(__name__)
_LIMIT = 5.0
"""Seconds for an answer."""

DualWrites = Mapping[str, str]
"""By the index that is rebuilt: the one that is filled."""


def with_dual_writes(actions: list[Action], dual_writes: DualWrites) -> list[Action]:
    """Returns the actions, and those for indexes that are filled."""
    if not dual_writes:
        return actions
    return actions + [one._replace(target=dual_writes[one.target]) for one in actions if one.target in dual_writes]


def with_dual_truncations(truncations: Iterable[Truncation], dual_writes: DualWrites) -> list[Truncation]:
    """Returns the same for truncated tables; rows of joins have their own trees."""
    found = list(truncations)
    copies = [one for one in found if not one.joined and one.target in dual_writes]
    return found + [one._replace(target=dual_writes[one.target]) for one in copies]


class DualWriteWatch:
    """Checks which indexes are rebuilt, before each batch and while there is none, and records it. What it records is
    valid from the next batch on: a batch that has begun keeps what it found, and nothing is recorded meanwhile."""

    def __init__(self, settings: ElasticsearchSettings) -> None:
        self._cluster = Cluster(settings)
        self._notes = Notes(self._cluster, min(_LIMIT, settings.request_timeout))
        self._batch = threading.Lock()
        self._known: dict[str, Note] | None = None
        self._said: dict[str, str] = {}
        """By index: the one that was recorded as being filled."""

    @contextlib.contextmanager
    def batch(self, number: int) -> Iterator[DualWrites]:
        """Yields what a batch writes twice. Raises BulkError if that is unknown."""
        with self._batch:
            why = self._refresh(number)
            if self._known is None:
                raise BulkError(f"index {INDEX} can't be read: {why}")
            yield {name: str(note["into"]) for name, note in self._known.items()}

    def idle(self, number: int) -> None:
        """Checks between batches; `number` is that of the last one."""
        if self._batch.acquire(blocking=False):
            try:
                self._refresh(number + 1)
            finally:
                self._batch.release()

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()

    def _refresh(self, number: int) -> str:
        """Takes the present notes; returns why that failed. Then the previous ones stay: a rebuild that knows that we
        write twice relies on it, and nobody else does."""
        try:
            # Before it has its own mappings, our writes would create the index with those of older messages.
            found = {name: note for name, note in self._notes.all().items() if note.get("prepared", True)}
            for name, note in found.items():
                self._say(name, note, number)
        except ApiError as error:
            if error.status != 403:
                return str(error)
            if self._known is None:
                log.warning("whether an index is rebuilt can't be read, so no rebuild can be done", index=INDEX)
            found = {}
        except TransportError as error:
            return str(error)
        self._known = found
        self._said = {name: into for name, into in self._said.items() if name in found}
        return ""

    def _say(self, name: str, note: Note, number: int) -> None:
        into = str(note["into"])
        consumer = note.get("consumer") or {}
        if self._said.get(name) != into or consumer.get("into") != into:
            self._known = {**(self._known or {}), name: note}
            if self._notes.update(name, consumer={"into": into, "since_batch": number}):
                log.info("an index is rebuilt: its changes are written twice", index=name, into=into, batch=number)
                self._said[name] = into
