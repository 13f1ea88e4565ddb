"""The products with Elasticsearch's protocol: their features, and how all documents of one moment are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, ClassVar

from headrace_documents.errors import ApiError, TransportError

Version = tuple[int, ...]
Call = Callable[..., Any]
"""Cluster.call."""
Hits = list[dict[str, Any]]

_KEEP = "5m"
"""How long a server keeps the point in time that is read, after each page."""
_NEVER: Version = (1_000_000,)


class Product(ABC):
    """One of the products, in one version; () if the version is unknown."""

    name: ClassVar[str]
    since: ClassVar[Mapping[str, Version]]
    """Mapping types that not every version has: the first version that has them."""
    instead: ClassVar[Mapping[str, str]]
    """Types of the other product, and the equivalents of this one."""

    def __init__(self, version: Version) -> None:
        self.version = version

    def __str__(self) -> str:
        return " ".join([self.name, ".".join(map(str, self.version))]).strip()

    def lacks(self, mapping_type: str) -> str:
        """Returns a sentence if this version has no such mapping type, with an alternative; "" if it has."""
        first = self.since.get(mapping_type, ())
        if first == _NEVER or (self.version and self.version < first):
            more = f"; it has {other}" if (other := self.instead.get(mapping_type)) else ""
            more += f"; it is there from {'.'.join(map(str, first))}" if first != _NEVER else ""
            return f"{self} has no mapping type {mapping_type}{more}"
        return ""

    @abstractmethod
    def moment(self, call: Call, index: str) -> AbstractContextManager[str]:
        """Yields what the parts of a search have in common; see `pages`."""

    @abstractmethod
    def pages(
        self, call: Call, index: str, search: dict[str, Any], part: tuple[int, int], moment: str
    ) -> Generator[Hits, None, None]:
        """Yields the hits of a search page by page, as of the moment when it begins, and frees the server's resources
        at the end. With several parts each document is in one, if they have the `moment` in common. Raises ApiError,
        also if a shard does not answer, and TransportError."""


class Elasticsearch(Product):
    """Elasticsearch: a point in time, and the next page after the last hit of the one before."""

    name = "Elasticsearch"
    since: ClassVar[Mapping[str, Version]] = {
        "flat_object": _NEVER, "knn_vector": _NEVER,
        "flattened": (7, 3), "constant_keyword": (7, 7), "wildcard": (7, 9), "unsigned_long": (7, 10),
        "version": (7, 10), "match_only_text": (7, 14), "semantic_text": (8, 15),
    }  # fmt: skip
    instead: ClassVar[Mapping[str, str]] = {"flat_object": "flattened", "knn_vector": "dense_vector"}

    @contextmanager
    def moment(self, call: Call, index: str) -> Generator[str, None, None]:
        moment = self._begin(call, index)
        try:
            yield moment
        finally:
            self._end(call, moment)

    def pages(
        self, call: Call, index: str, search: dict[str, Any], part: tuple[int, int], moment: str
    ) -> Generator[Hits, None, None]:
        body = {"sort": ["_shard_doc"], "track_total_hits": False, **search}
        if part[1] > 1:  # by the position in the index, which is the same at one moment
            body["slice"] = {"id": part[0], "max": part[1]}
        used = moment or self._begin(call, index)
        try:
            while True:
                answer = _whole(call("POST", "_search", {**body, "pit": {"id": used, "keep_alive": _KEEP}}))
                used, hits = answer.get("pit_id", used), answer["hits"]["hits"]
                if not hits:
                    return
                body["search_after"] = hits[-1]["sort"]
                yield hits
        finally:
            if not moment:
                self._end(call, used)

    def _begin(self, call: Call, index: str) -> str:
        return str(call("POST", (index, "_pit"), keep_alive=_KEEP)["id"])

    def _end(self, call: Call, moment: str) -> None:
        with suppress(ApiError, TransportError):  # it expires after a while
            call("DELETE", "_pit", {"id": moment})


class OpenSearch(Product):
    """OpenSearch: a scroll. Its points in time have no order that distinguishes documents of several shards: a page
    would lose those that have the same position as the last hit of the page before."""

    name = "OpenSearch"
    since: ClassVar[Mapping[str, Version]] = {
        **dict.fromkeys(
            (
                "counted_keyword", "dense_vector", "flattened", "point", "semantic_text", "shape", "sparse_vector",
                "version",
            ),
            _NEVER,
        ),
        "flat_object": (2, 7), "unsigned_long": (2, 8), "match_only_text": (2, 12), "constant_keyword": (2, 14),
        "wildcard": (2, 15),
    }  # fmt: skip
    instead: ClassVar[Mapping[str, str]] = {
        "flattened": "flat_object",
        "dense_vector": "knn_vector",
        "version": "keyword",
    }

    def moment(self, call: Call, index: str) -> AbstractContextManager[str]:
        return nullcontext("")

    def pages(
        self, call: Call, index: str, search: dict[str, Any], part: tuple[int, int], moment: str
    ) -> Generator[Hits, None, None]:
        if part[1] > 1:  # by the id, which is the same at every moment
            search = {**search, "slice": {"field": "_id", "id": part[0], "max": part[1]}}
        answer = call("POST", (index, "_search"), {"sort": ["_doc"], **search}, scroll=_KEEP)
        try:
            while hits := _whole(answer)["hits"]["hits"]:
                yield hits
                answer = call("POST", "_search/scroll", {"scroll_id": answer["_scroll_id"], "scroll": _KEEP})
        finally:
            with suppress(ApiError, TransportError):
                call("DELETE", "_search/scroll", {"scroll_id": [answer["_scroll_id"]]})


def _whole(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a search. Raises ApiError if it is not that of all shards: documents would be missing."""
    shards = answer["_shards"]
    if answer.get("timed_out") or shards["failed"]:
        causes = [failure.get("reason") for failure in shards.get("failures", ())]
        cause = next((one for one in causes if isinstance(one, dict)), {})
        found = {"type": "search_phase_execution_exception", "reason": "not all shards answer", "caused_by": cause}
        raise ApiError(503, {"error": found})
    return answer


def product_of(answer: Any, *, header: str) -> Product | None:
    """Returns the product that answered to `GET /` or to `GET /_nodes/_local`; `header` is the answer's
    x-elastic-product. None if the answer does not show it."""
    answer = answer if isinstance(answer, dict) else {}
    version = answer.get("version")
    if isinstance(version, dict) and "number" in version:
        if version.get("distribution") == "opensearch":
            return OpenSearch(_numbers(version["number"]))
        if "OpenSearch" in str(answer.get("tagline")):
            return None  # for old clients it reports an Elasticsearch version; its nodes report their own
        return Elasticsearch(_numbers(version["number"]))
    nodes = answer.get("nodes")
    for node in nodes.values() if isinstance(nodes, dict) else ():
        made = Elasticsearch if header or "build_flavor" in node else OpenSearch
        return made(_numbers(node.get("version", "")))
    return None


def _numbers(text: str) -> Version:
    """Returns the numbers of a version such as 2.19.1 or 9.0.0-rc1."""
    parts = text.partition("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())
