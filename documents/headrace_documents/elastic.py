"""Bulk writes to Elasticsearch: what is done, what is tried again, and which document is to blame."""

from __future__ import annotations

import base64
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import structlog
from elasticsearch import (
    ApiError,
    AuthorizationException,
    BadRequestError,
    ConnectionTimeout,
    Elasticsearch,
    NotFoundError,
    TransportError,
)
from elasticsearch import ConnectionError as ElasticConnectionError

from headrace_common.tls import TlsFileError, client_context
from headrace_documents.config import absolute
from headrace_documents.documents import Action
from headrace_documents.errors import BulkError, UnreachableError
from headrace_documents.settings import ElasticsearchSettings

log = structlog.get_logger("headrace_documents.elastic")

MAX_WAIT = 10.0
_LOOK_AGAIN = 2.0
"""Seconds until an index that could not be used is looked at again."""
# With these the request as a whole may succeed later; anything else needs a change by somebody.
_RETRY = frozenset({408, 429, 500, 502, 503, 504})
# The state of an index or a missing right, not the document: putting the documents aside would help nobody.
_OPERATOR = frozenset({"cluster_block_exception", "index_closed_exception", "security_exception"})
# What only the content of a document brings about, also where Elasticsearch answers with 500. All other errors of the
# server may be a shard's, and would put every document aside that comes to it.
_CONTENT = frozenset(
    {
        "document_parsing_exception", "mapper_parsing_exception", "strict_dynamic_mapping_exception",
        "parsing_exception", "parse_exception", "x_content_parse_exception", "json_parse_exception",
        "illegal_argument_exception", "number_format_exception", "arithmetic_exception", "date_time_exception",
        "null_pointer_exception", "class_cast_exception", "index_out_of_bounds_exception",
        "array_index_out_of_bounds_exception", "string_index_out_of_bounds_exception",
    }
)  # fmt: skip
_DURATION = re.compile(r"(\d+)(nanos|micros|ms|s|m|h|d)")
_SECONDS = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_META = "headrace"
"""Where the owner of an index is noted in its mappings' `_meta`."""
_FILTER = "items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"


class Rejected(NamedTuple):
    """A document that Elasticsearch will never take: the place of its action in the batch, and why."""

    number: int
    reason: str


@dataclass(slots=True)
class Tally:
    """What became of the actions of one writer."""

    indexed: int = 0
    deleted: int = 0
    stale: int = 0
    rejected: int = 0


class _Line(NamedTuple):
    number: int
    data: bytes
    delete: bool


def connect(settings: ElasticsearchSettings) -> Elasticsearch:
    """A client that never retries by itself: what is tried again, and how long, is decided here."""
    password, api_key = settings.password.get_secret_value(), settings.api_key.get_secret_value()
    options: dict[str, Any] = {}
    if settings.user:
        # Encoded here: the client takes an account of ASCII only.
        options["basic_auth"] = base64.b64encode(f"{settings.user}:{password}".encode()).decode()
    if api_key:
        options["api_key"] = api_key
    if settings.tls_ca:
        try:
            options["ssl_context"] = client_context(absolute(settings.tls_ca))
        except TlsFileError as error:
            raise UnreachableError(f"the file of [elasticsearch] {error}") from error
    return Elasticsearch(
        settings.hosts,
        request_timeout=settings.request_timeout,
        max_retries=0,
        retry_on_timeout=False,
        # A node that failed is asked again at once: with a single host the pool would have no other anyway.
        dead_node_backoff_factor=0.1,
        max_dead_node_backoff=1.0,
        **options,
    )


def check(settings: ElasticsearchSettings, timeout: float = 10.0) -> None:
    """Asks Elasticsearch for a sign of life; raises UnreachableError with what to do."""
    where = ", ".join(settings.hosts)
    try:
        with connect(settings) as client:
            client.options(request_timeout=timeout).cluster.health(timeout=f"{timeout:.0f}s")
    except ApiError as error:
        if error.status_code == 401:
            raise UnreachableError(
                f"Elasticsearch at {where} refuses our credentials: check user, password or api_key in [elasticsearch]"
            ) from None
        # 403: no right to see the cluster's health, which is not needed for writing.
        log.info("Elasticsearch answers, its health is not ours to see", status=error.status_code)
    except TransportError as error:
        raise UnreachableError(
            f"Elasticsearch at {where} does not answer: {error}. Is it running? Is `hosts` in [elasticsearch] right?"
        ) from None


class BulkWriter:
    """Writes actions to Elasticsearch with their versions. One writer a Spark task, not shared between threads."""

    def __init__(
        self, settings: ElasticsearchSettings, client: Elasticsearch, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._settings = settings
        self._client = client
        self._sleep = sleep
        self._owners: dict[str, tuple[str, ...]] = {}
        """Of the indexes that are fit to be written to."""
        self._refused: dict[tuple[str, tuple[str, ...]], tuple[str, float]] = {}
        """By index and owner: why it could not be used the last time, and when that was found; "" when it could."""
        self.tally = Tally()

    def write(self, actions: Sequence[Action]) -> list[Rejected]:
        """Applies the actions; returns those that were rejected.

        Older than what is there (409) and already gone (404 of a delete) count as done. An index that can't be used
        has all of its actions rejected, and the others go on. Raises BulkError when Elasticsearch could not be moved to
        take the rest within `retries`.
        """
        unfit = {key: why for key in {(one.target, one.owner) for one in actions} if (why := self._unfit(*key))}
        rejected = [
            Rejected(number, unfit[one.target, one.owner])
            for number, one in enumerate(actions)
            if (one.target, one.owner) in unfit
        ]
        fit = ((n, one) for n, one in enumerate(actions) if (one.target, one.owner) not in unfit)
        for chunk in self._chunks(fit):
            rejected += self._send(chunk)
        self.tally.rejected += len(rejected)
        return rejected

    def _chunks(self, actions: Iterable[tuple[int, Action]]) -> Iterator[list[_Line]]:
        chunk: list[_Line] = []
        size = 0
        for number, action in actions:
            data = encode(action)
            if chunk and (len(chunk) >= self._settings.bulk_actions or size + len(data) > self._settings.bulk_bytes):
                yield chunk
                chunk, size = [], 0
            chunk.append(_Line(number, data, action.body is None))
            size += len(data)
        if chunk:
            yield chunk

    def _send(self, lines: list[_Line]) -> list[Rejected]:
        rejected: list[Rejected] = []
        why = ""
        for attempt in range(self._settings.retries + 1):
            if attempt:
                wait = min(MAX_WAIT, self._settings.retry_wait * 2 ** (attempt - 1)) * random.uniform(0.75, 1.0)
                log.warning(
                    "bulk request is tried again",
                    attempt=attempt,
                    actions=len(lines),
                    seconds=round(wait, 2),
                    reason=why,
                )
                self._sleep(wait)
            # Encoded here and passed on as they are; the client's annotation knows only of objects and text.
            data: list[Any] = [line.data for line in lines]
            try:
                response = self._client.bulk(operations=data, filter_path=_FILTER)
            except ApiError as error:
                why = f"{error.status_code} {_reason(error.body)}"
                if error.status_code in _RETRY:
                    continue
                if error.status_code in (400, 413):
                    # The request as a whole was refused: too large, or one action in it is malformed. Halving finds it.
                    return rejected + self._halve(lines, why)
                raise BulkError(f"Elasticsearch refuses bulk requests: {why}") from None
            except (ElasticConnectionError, ConnectionTimeout, TransportError) as error:
                why = str(error)
                continue
            again, failed, why = self._sort(lines, response["items"])
            rejected += failed
            if not again:
                return rejected
            lines = again
        raise BulkError(
            f"Elasticsearch did not take {len(lines)} actions after {self._settings.retries} retries: {why}"
        )

    def _halve(self, lines: list[_Line], why: str) -> list[Rejected]:
        if len(lines) == 1:
            return [Rejected(lines[0].number, why)]
        middle = len(lines) // 2
        return self._send(lines[:middle]) + self._send(lines[middle:])

    def _sort(self, lines: list[_Line], items: list[dict[str, Any]]) -> tuple[list[_Line], list[Rejected], str]:
        again: list[_Line] = []
        rejected: list[Rejected] = []
        why = ""
        tally = self.tally
        if len(items) != len(lines):
            raise BulkError(f"Elasticsearch answered {len(items)} results to {len(lines)} actions")
        for line, item in zip(lines, items, strict=True):
            result = next(iter(item.values()))
            status = result["status"]
            if status < 300:
                if line.delete:
                    tally.deleted += 1
                else:
                    tally.indexed += 1
            elif status == 409:
                tally.stale += 1
            elif status == 404 and line.delete and not result.get("error"):
                tally.deleted += 1
            else:
                error = result.get("error") or {}
                text = f"{status} {_reason({'error': error})}"
                if status in (401, 403) or error.get("type") in _OPERATOR:
                    raise BulkError(f"Elasticsearch refuses to write: {text}")
                if status in _RETRY and not (status == 500 and error.get("type") in _CONTENT):
                    again.append(line)
                    why = text
                else:
                    rejected.append(Rejected(line.number, text))
        return again, rejected, why

    # -- indexes --------------------------------------------------------------------------------------------------

    def _unfit(self, index: str, owner: tuple[str, ...]) -> str:
        """Why the documents of `owner` can't be written into the index; "" when they can. Raises BulkError when
        Elasticsearch does not say."""
        before, at = self._refused.get((index, owner), ("", 0.0))
        if before and time.monotonic() - at < _LOOK_AGAIN:
            return before
        why = ""
        if index not in self._owners:
            try:
                self._owners[index] = self._prepare(index, owner)
            except _UnfitIndex as error:
                why = str(error)
            except ApiError as error:
                why = f"index {index} can't be prepared: {error.status_code} {_reason(error.body)}"
                if error.status_code in _RETRY or error.status_code == 401 or "cluster_block" in why:
                    raise BulkError(why) from None
            except TransportError as error:
                raise BulkError(f"can't look at index {index}: {error}") from None
        if not why and (known := self._owners[index]) != owner:
            why = (
                f"index {index} has the documents of {'.'.join(known)}, and those of {'.'.join(owner)} would take "
                "their place: give these tables another `index`, such as by a second consumer"
            )
        if why and why != before:
            log.error("an index can't be used; its documents wait as dead letters", index=index, reason=why)
        self._refused[index, owner] = why, time.monotonic()
        return why

    def _prepare(self, index: str, owner: tuple[str, ...]) -> tuple[str, ...]:
        """Makes the index when it is missing, else looks whether it is fit; its owner. Raises _UnfitIndex, ApiError and
        TransportError."""
        indices, settings = self._client.indices, self._settings
        try:
            found = indices.get_settings(index=index, flat_settings=True)
        except NotFoundError:
            if not settings.create_index:
                raise _UnfitIndex(f"there is no index {index}: make it, or set create_index") from None
            body = settings.index_body()
            body["mappings"] = {**body["mappings"], "_meta": _with_owner(body["mappings"].get("_meta"), owner)}
            try:
                indices.create(index=index, **body)
            except BadRequestError as error:
                # Another task of the same batch was faster.
                if "resource_already_exists_exception" not in str(error.body):
                    raise
                return self._prepare(index, owner)
            log.info("index created", index=index)
            return owner
        except AuthorizationException as error:
            if settings.create_index:  # as for a write: no document is to blame
                raise BulkError(f"Elasticsearch refuses a look at index {index}: {_reason(error.body)}") from None
            log.warning("the index can't be looked at: it may forget deletes too early", index=index)
            return owner
        if settings.deletes == "remove":
            self._require_memory(index, found.body)
        return self._claim(index, owner)

    def _require_memory(self, index: str, found: dict[str, Any]) -> None:
        """Of deletes: at least as long as configured, in all indexes behind the name."""
        wanted = self._settings.gc_deletes
        texts = [str(one["settings"].get("index.gc_deletes", "60s")) for one in found.values()]
        if all(_seconds(text) >= _seconds(wanted) for text in texts):
            return
        if self._settings.create_index:
            try:
                self._client.indices.put_settings(index=index, settings={"index.gc_deletes": wanted})
            except AuthorizationException as error:
                if "cluster_block" in str(error.body):
                    raise
            else:
                log.info("index remembers deletes for longer", index=index, before=texts[0], now=wanted)
                return
        raise _UnfitIndex(
            f"index {index} remembers deletes for {min(texts, key=_seconds)} (index.gc_deletes), and gc_deletes is "
            f"{wanted}: an older change that comes later would bring a deleted document back. Set index.gc_deletes, or "
            'lower gc_deletes, or set deletes = "tombstone"'
        )

    def _claim(self, index: str, owner: tuple[str, ...]) -> tuple[str, ...]:
        """The owner that the index was made for; it is noted there when it is not yet, so that other processes know."""
        if not owner:
            return owner
        try:
            metas = self._metas(index)
            if not any(meta.get(_META) for meta in metas) and self._settings.create_index:
                self._client.indices.put_mapping(index=index, meta=_with_owner(metas[0], owner))
                metas = self._metas(index)  # somebody else may have claimed it at the same time
        except AuthorizationException as error:
            if "cluster_block" in str(error.body):
                raise
            log.warning("whose the index is can't be noted in it", index=index, owner=".".join(owner))
            return owner
        except NotFoundError:
            raise BulkError(f"index {index} went while it was looked at") from None
        return next((tuple(meta[_META]) for meta in metas if meta.get(_META)), owner)

    def _metas(self, index: str) -> list[dict[str, Any]]:
        """What is noted in the mappings of all indexes behind the name."""
        found = self._client.indices.get_mapping(index=index).body
        return [one["mappings"].get("_meta") or {} for one in found.values()]


class _UnfitIndex(Exception):
    """The text says why."""


def _with_owner(meta: Any, owner: tuple[str, ...]) -> dict[str, Any]:
    return {**(meta or {}), **({_META: list(owner)} if owner else {})}


def _seconds(text: str) -> float:
    """A duration as Elasticsearch writes it; "-1" and "0" are none."""
    found = _DURATION.fullmatch(text)
    return int(found[1]) * _SECONDS[found[2]] if found else 0.0


def encode(action: Action) -> bytes:
    """The lines of one action in a bulk request."""
    kind = "delete" if action.body is None else "index"
    meta = {"_index": action.target, "_id": action.id, "version": action.version, "version_type": "external_gte"}
    if action.routing:
        meta["routing"] = action.routing
    head = {kind: meta}
    if action.body is None:
        return orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE)
    try:
        body = orjson.dumps(action.body, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:
        # An integer of more than 64 bits can't be a number in Elasticsearch either.
        texts = {k: str(v) if isinstance(v, int) and v.bit_length() > 63 else v for k, v in action.body.items()}
        body = orjson.dumps(texts, option=orjson.OPT_APPEND_NEWLINE)
    return orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE) + body


def _reason(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return str(body)[:300]
    caused = error.get("caused_by")
    parts = [error.get("type"), error.get("reason"), caused.get("reason") if isinstance(caused, dict) else None]
    return ": ".join(str(part) for part in parts if part)
