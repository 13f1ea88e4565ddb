"""Bulk writes to Elasticsearch: what is done, what is retried, and which document is the cause of an error."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import orjson
import structlog

from headrace_documents.documents import Action
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.index_setup import GONE, RETRY, IndexSetup
from headrace_documents.elastic.mappings import check_declared
from headrace_documents.errors import ApiError, BulkError, TransportError, UnreachableError, ask, reason_of
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.settings import ElasticsearchSettings

T = TypeVar("T")
log = structlog.get_logger(__name__)

MAX_WAIT = 10.0
# Errors about the state of an index or a missing right, not the document: a dead letter would help nobody.
_OPERATOR = frozenset({"cluster_block_exception", "index_closed_exception", "security_exception"})
# Error texts, with status 400 for any document, of a shard that has as many documents as Lucene allows.
_FULL = ("documents per shard", "number of documents in the index cannot exceed")
# Errors that only the content of a document causes, also if Elasticsearch answers with 500. All other errors of the
# server may be a shard's, and would make a dead letter of every document that comes to it.
_CONTENT = frozenset(
    {
        "document_parsing_exception", "mapper_parsing_exception", "strict_dynamic_mapping_exception",
        "parsing_exception", "parse_exception", "x_content_parse_exception", "json_parse_exception",
        "illegal_argument_exception", "number_format_exception", "arithmetic_exception", "date_time_exception",
        "null_pointer_exception", "class_cast_exception", "index_out_of_bounds_exception",
        "array_index_out_of_bounds_exception", "string_index_out_of_bounds_exception",
    }
)  # fmt: skip
_THERE = re.compile(r"current version \[(\d+)\]")
_FILTER = "items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"


class Rejected(NamedTuple):
    """A document that Elasticsearch will never accept: the index of its action in the batch, and why."""

    number: int
    reason: str


@dataclass(slots=True)
class Tally:
    """The results of one writer's actions; `indexes` has them by index and by the names of the other fields."""

    indexed: int = 0
    deleted: int = 0
    stale: int = 0
    rejected: int = 0
    indexes: Counter[tuple[str, str]] = field(default_factory=Counter)


class Swap(NamedTuple):
    """A document that is written only if its last write is the one that `where` names, or if it does not exist; `where`
    also has the index and id. `body` is None for a delete."""

    where: dict[str, Any]
    body: dict[str, Any] | None


class _Line(NamedTuple):
    number: int
    data: bytes
    delete: bool
    target: str


def check(settings: ElasticsearchSettings, indexes: Sequence[IndexSettings] = (), *, timeout: float = 10.0) -> None:
    """Checks that Elasticsearch answers, and has the mapping types of the declared indexes. Raises UnreachableError and
    SettingsError with the remedy."""
    where = ", ".join(settings.hosts)
    try:
        with Cluster(settings) as cluster:
            check_declared(cluster, settings, indexes)
            cluster.call("GET", f"_cluster/health?timeout={timeout:.0f}s", timeout=timeout)
    except ApiError as error:
        if error.status == 401:
            raise UnreachableError(
                f"Elasticsearch at {where} refuses our credentials: check user, password or api_key in [elasticsearch]"
            ) from None
        # 403: no right to see the cluster's health, which is not needed for writing.
        log.info("Elasticsearch answers, its health is not ours to see", status=error.status)
    except TransportError as error:
        raise UnreachableError(
            f"Elasticsearch at {where} does not answer: {error}. Is it running? Is `hosts` in [elasticsearch] right?"
        ) from None


class BulkWriter:
    """Writes actions to Elasticsearch with their versions. One writer for each Spark task, not shared between
    threads."""

    def __init__(
        self, settings: ElasticsearchSettings, cluster: Cluster, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._settings = settings
        self.cluster = cluster
        self._sleep = sleep
        self._conflicts: dict[int, int] = {}
        """For the request: what was refused for its version, with the existing version; 0 if the answer does not have
        it."""
        self.newer: dict[int, int] = {}
        """For the last write(): the indexes of the actions that were older than the existing document, with its
        version. That may be the version of a delete."""
        self.indexes = IndexSetup(settings, cluster)
        self.tally = Tally()

    def write(self, actions: Sequence[Action]) -> list[Rejected]:
        """Applies the actions; returns those that were rejected.

        Older than the existing document (409) and already gone (404 of a delete) count as done. An index that can't be
        used has all of its actions rejected, and the others continue. Raises BulkError if Elasticsearch did not accept
        the rest within `retries`, and IndexRefused."""
        self._conflicts.clear()
        unfit = {key: why for key in {(one.target, one.owner) for one in actions} if (why := self.indexes.unfit(*key))}
        rejected: list[Rejected] = []
        fit: Iterable[tuple[int, Action]] = enumerate(actions)
        if unfit:
            rejected = [Rejected(n, unfit[one.target, one.owner]) for n, one in fit if (one.target, one.owner) in unfit]
            fit = ((n, one) for n, one in enumerate(actions) if (one.target, one.owner) not in unfit)
        for chunk in self._chunks(_Line(n, encode(one), one.body is None, one.target) for n, one in fit):
            rejected += self._send(chunk)
        self.tally.rejected += len(rejected)
        self.tally.stale += len(self._conflicts)
        for number in self._conflicts:
            self.tally.indexes[actions[number].target, "stale"] += 1
        self.newer, self._conflicts = self._conflicts, {}
        return rejected

    def swap(self, swaps: Sequence[Swap]) -> tuple[list[int], list[Rejected]]:
        """Writes documents; returns the indexes of those that others have written meanwhile, and those that were
        rejected. Raises BulkError."""
        rejected: list[Rejected] = []
        for chunk in self._chunks(
            _Line(n, encode_swap(one), one.body is None, one.where["_index"]) for n, one in enumerate(swaps)
        ):
            rejected += self._send(chunk)
        self.tally.rejected += len(rejected)
        beaten, self._conflicts = list(self._conflicts), {}
        return beaten, rejected

    def _chunks(self, lines: Iterable[_Line]) -> Iterator[list[_Line]]:
        chunk: list[_Line] = []
        size = 0
        for line in lines:
            if chunk and (
                len(chunk) >= self._settings.bulk_actions or size + len(line.data) > self._settings.bulk_bytes
            ):
                yield chunk
                chunk, size = [], 0
            chunk.append(line)
            size += len(line.data)
        if chunk:
            yield chunk

    def _send(self, lines: list[_Line]) -> list[Rejected]:
        rejected: list[Rejected] = []
        why = ""
        for attempt in range(self._settings.retries + 1):
            if attempt:
                wait = min(MAX_WAIT, self._settings.retry_wait * 2 ** (attempt - 1)) * random.uniform(0.75, 1.0)
                self._again(attempt, len(lines), wait, why)
                self._sleep(wait)
            try:
                items = self._bulk(lines)
            except ApiError as error:
                why = str(error)
                if error.status in RETRY:
                    continue
                if error.status in (400, 413):
                    # The request as a whole was refused: too large, or one action in it is malformed. Halving finds it.
                    return rejected + self._halve(lines, why)
                raise BulkError(f"Elasticsearch refuses bulk requests: {why}") from None
            except TransportError as error:
                why = str(error)
                continue
            again, failed, why = self._sort(lines, items)
            rejected += failed
            if not again:
                self._wrote()
                return rejected
            lines = again
        raise BulkError(
            f"Elasticsearch did not take {len(lines)} actions after {self._settings.retries} retries: {why}"
        )

    def ask(self, index: str, request: Callable[[], T]) -> T:
        """Returns the result of a request about an index. Raises BulkError."""
        return ask(index, request)

    def _bulk(self, lines: list[_Line]) -> list[dict[str, Any]]:
        """Sends one request. Raises ApiError and TransportError."""
        return self.cluster.bulk((line.data for line in lines), _FILTER)

    def _again(self, attempt: int, actions: int, seconds: float, why: str) -> None:
        """Waits this many seconds before a request is retried."""
        log.warning(
            "bulk request is tried again", attempt=attempt, actions=actions, seconds=round(seconds, 2), reason=why
        )

    def _wrote(self) -> None:
        """Records that a request was answered, and nothing of it must be sent again."""

    def _halve(self, lines: list[_Line], why: str) -> list[Rejected]:
        if len(lines) == 1:
            return [Rejected(lines[0].number, why)]
        middle = len(lines) // 2
        return self._send(lines[:middle]) + self._send(lines[middle:])

    def _sort(self, lines: list[_Line], items: list[dict[str, Any]]) -> tuple[list[_Line], list[Rejected], str]:
        again: list[_Line] = []
        rejected: list[Rejected] = []
        why = ""
        done: Counter[tuple[str, str]] = Counter()
        if len(items) != len(lines):
            raise BulkError(f"Elasticsearch answered {len(items)} results to {len(lines)} actions")
        for line, item in zip(lines, items, strict=True):
            result = next(iter(item.values()))
            status = result["status"]
            if status < 300 or (status == 404 and line.delete and not result.get("error")):
                what = "deleted" if line.delete else "indexed"
            elif status == 409:
                self._conflicts[line.number] = _version_there(result)
                continue
            else:
                error = result.get("error") or {}
                text = f"{status} {reason_of({'error': error})}"
                if status in (401, 403) or error.get("type") in _OPERATOR or any(sign in text for sign in _FULL):
                    raise BulkError(f"Elasticsearch refuses to write: {text}")
                if error.get("type") == GONE:
                    self.indexes.forget(line.target)
                    again.append(line)
                    why = text
                elif status in RETRY and not (status == 500 and error.get("type") in _CONTENT):
                    again.append(line)
                    why = text
                else:
                    rejected.append(Rejected(line.number, text))
                    self.tally.indexes[line.target, "rejected"] += 1
                continue
            done[line.target, what] += 1
        for (target, what), count in done.items():
            setattr(self.tally, what, getattr(self.tally, what) + count)
            self.tally.indexes[target, what] += count
        return again, rejected, why


def _version_there(result: dict[str, Any]) -> int:
    found = _THERE.search(str((result.get("error") or {}).get("reason")))
    return int(found[1]) if found else 0


def encode(action: Action) -> bytes:
    """Returns the lines of one action in a bulk request."""
    kind = "delete" if action.body is None else "index"
    meta = {"_index": action.target, "_id": action.id, "version": action.version, "version_type": "external_gte"}
    if action.routing:
        meta["routing"] = action.routing
    return _lines({kind: meta}, action.body)


def encode_swap(swap: Swap) -> bytes:
    """Returns the same for a swap."""
    if swap.body is None:
        return _lines({"delete": swap.where}, None)
    return _lines({"index" if "if_seq_no" in swap.where else "create": swap.where}, swap.body)


def _lines(head: dict[str, Any], body: dict[str, Any] | None) -> bytes:
    first = orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE)
    if body is None:
        return first
    try:
        return first + orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        # Elasticsearch does not accept an integer of more than 64 bits as a number either.
        return first + orjson.dumps(_with_texts(body), option=orjson.OPT_APPEND_NEWLINE)


def _with_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_texts(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(one) for one in value]
    return str(value) if isinstance(value, int) and value.bit_length() > 63 else value
