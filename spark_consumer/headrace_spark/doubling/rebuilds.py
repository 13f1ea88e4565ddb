"""Rebuilds that are under way, as an index says: what the command and the running consumer tell each other."""

from __future__ import annotations

from typing import Any

from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError

INDEX = "headrace-rebuilds"
_MOST = 1000
_BODY = {
    "settings": {"index.number_of_shards": 1, "index.auto_expand_replicas": "0-1"},
    "mappings": {"dynamic": False},
}
Note = dict[str, Any]
"""Of a rebuild: `into`, the index that is filled; `run`, the process that does it; how far it is; `consumer`, what the
consumer has said."""


class Notes:
    """The notes in Elasticsearch, by the name of the index that is rebuilt. The methods raise ApiError and
    TransportError; each answer has the limit `timeout` in seconds."""

    def __init__(self, cluster: Cluster, timeout: float | None = None) -> None:
        self._cluster, self._timeout = cluster, timeout

    def all(self) -> dict[str, Note]:
        """The notes of all rebuilds."""
        search = {"size": _MOST, "query": {"match_all": {}}}
        path, more = (INDEX, "_search"), {"ignore_unavailable": "true", "allow_partial_search_results": "false"}
        found = self._cluster.call("POST", path, search, timeout=self._timeout, **more)
        return {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}

    def get(self, name: str) -> Note | None:
        """The note of one, as it is now."""
        try:
            found = self._cluster.call("GET", (INDEX, "_doc", name), timeout=self._timeout)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        note: Note = found["_source"]
        return note

    def begin(self, name: str, note: Note) -> bool:
        """Notes that a rebuild begins; false when there is one already."""
        try:
            self._cluster.create_index(INDEX, _BODY)
        except ApiError as error:
            if "resource_already_exists_exception" not in str(error.body):
                raise
        try:
            self._cluster.call("PUT", (INDEX, "_create", name), note, refresh="true")
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    def update(self, name: str, **fields: Any) -> bool:
        """Changes some fields, and leaves those that others write; false when there is no such note any more."""
        more = {"refresh": "true", "retry_on_conflict": 10}
        try:
            self._cluster.call("POST", (INDEX, "_update", name), {"doc": fields}, timeout=self._timeout, **more)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def remove(self, name: str) -> None:
        """The rebuild is over."""
        try:
            self._cluster.call("DELETE", (INDEX, "_doc", name), refresh="true")
        except ApiError as error:
            if error.status != 404:
                raise
