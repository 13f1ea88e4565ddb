"""Indexes before they are written to: made, or looked at whether they are fit, and their mappings extended."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any

import structlog
from elasticsearch import (
    ApiError,
    AuthorizationException,
    BadRequestError,
    Elasticsearch,
    NotFoundError,
    TransportError,
)

from headrace_documents.errors import BulkError
from headrace_documents.index_settings import IndexSettings
from headrace_documents.indexes import IndexPlan
from headrace_documents.settings import ElasticsearchSettings
from headrace_documents.types import Property

log = structlog.get_logger("headrace_documents.index_setup")

_LOOK_AGAIN = 2.0
"""Seconds until an index that could not be used is looked at again."""
# With these the request as a whole may succeed later; anything else needs a change by somebody.
RETRY = frozenset({408, 429, 500, 502, 503, 504})
_DURATION = re.compile(r"(\d+)(nanos|micros|ms|s|m|h|d)")
_SECONDS = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_META = "headrace"
"""Where the owner of an index is noted in its mappings' `_meta`."""


@dataclass(slots=True)
class _Declared:
    """What [[index]] says of an index, and the mappings of all fields that were asked for so far."""

    settings: IndexSettings
    properties: dict[str, Property] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)


class IndexSetup:
    """Of one writer, which asks before it writes to an index."""

    def __init__(self, settings: ElasticsearchSettings, client: Elasticsearch) -> None:
        self._settings, self._client = settings, client
        self._owners: dict[str, tuple[str, ...]] = {}
        """Of the indexes that are fit to be written to."""
        self._refused: dict[tuple[str, tuple[str, ...]], tuple[str, float]] = {}
        """By index and owner: why it could not be used the last time, and when that was found; "" when it could."""
        self._declared: dict[str, _Declared] = {}

    def declare(self, plan: IndexPlan) -> None:
        """Documents of this plan will come: its index has to have the mappings of their fields first."""
        known = self._declared.setdefault(plan.target, _Declared(plan.settings))
        new = {name: mapping for name, mapping in plan.properties.items() if name not in known.properties}
        if new:
            known.properties |= new
            self._owners.pop(plan.target, None)

    def unfit(self, index: str, owner: tuple[str, ...]) -> str:
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
                why = f"index {index} can't be prepared: {error.status_code} {reason_of(error.body)}"
                if error.status_code in RETRY or error.status_code == 401 or "cluster_block" in why:
                    raise BulkError(why) from None
            except TransportError as error:
                raise BulkError(f"can't look at index {index}: {transport_reason(error)}") from None
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
            body = self._body(index)
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
                raise BulkError(f"Elasticsearch refuses a look at index {index}: {reason_of(error.body)}") from None
            log.warning("the index can't be looked at: it may forget deletes too early", index=index)
            return owner
        if settings.deletes == "remove":
            self._require_memory(index, found.body)
        if index in self._declared:
            self._extend(index, self._declared[index])
        return self._claim(index, owner)

    def _body(self, index: str) -> dict[str, Any]:
        """Settings and mappings of an index that is made."""
        body, declared = self._settings.index_body(), self._declared.get(index)
        if declared is None:
            return body
        own = declared.settings
        if own.template:
            return {"settings": {}, "mappings": {}}
        body["settings"] = {**body["settings"], **own.settings}
        properties = {**declared.properties, **body["mappings"].get("properties", {})}
        body["mappings"] = {**body["mappings"], **own.mappings}
        body["mappings"]["properties"] = {**properties, **own.mappings.get("properties", {})}
        return body

    def _extend(self, index: str, declared: _Declared) -> None:
        """Gives an index the mappings of fields that it has not yet. What it has already stays: a field of another type
        is somebody's choice, and what does not fit it is refused one by one."""
        found = self._client.indices.get_mapping(index=index).body
        there = [one["mappings"].get("properties", {}) for one in found.values()]
        for name, mapping in declared.properties.items():
            types = {one[name].get("type", "object") for one in there if name in one}
            if types and types != {mapping.get("type", "object")} and name not in declared.told:
                declared.told.add(name)
                log.warning(
                    "a field has another type than its column asks for; documents that do not fit become dead letters",
                    index=index,
                    field=name,
                    type=", ".join(sorted(types)),
                    wanted=mapping.get("type", "object"),
                )
        new = {name: one for name, one in declared.properties.items() if any(name not in known for known in there)}
        if not new or declared.settings.template:
            return
        if not self._settings.create_index:
            raise _UnfitIndex(f"index {index} has no field {', '.join(sorted(new))}: make them, or set create_index")
        self._client.indices.put_mapping(index=index, properties=new)
        log.info("fields were added to the mapping", index=index, fields=sorted(new))

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


def transport_reason(error: TransportError) -> str:
    """What the client says of a request without an answer, and what it got from the network."""
    return ": ".join(dict.fromkeys([str(error), str(error.message), *(str(one) for one in error.errors)]))[:500]


def reason_of(body: Any) -> str:
    """What an answer of Elasticsearch says of its error."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return str(body)[:300]
    caused = error.get("caused_by")
    parts = [error.get("type"), error.get("reason"), caused.get("reason") if isinstance(caused, dict) else None]
    return ": ".join(str(part) for part in parts if part)
