"""Prepares indexes before they are written to: creates them, or checks that they are fit, and extends their
mappings."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import structlog

from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.mappings import Properties, differing, lacking, merged, missing, names
from headrace_documents.errors import ApiError, BulkError, ConsumerError, TransportError
from headrace_documents.indexes.projection import UnfitTable
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.joins.tree import ROWS_MAPPING, JoinTree
from headrace_documents.settings import ElasticsearchSettings

log = structlog.get_logger(__name__)

_POLL = 2.0
"""Seconds until an index that could not be used is checked again."""
# With these the request as a whole may succeed later; any other needs a change by somebody.
GONE = "index_not_found_exception"
"""The error for an index that was deleted since it was prepared: its name is being moved to another one, or an operator
has removed it."""
RETRY = frozenset({408, 429, 500, 502, 503, 504})
_DURATION = re.compile(r"(\d+)(nanos|micros|ms|s|m|h|d)")
_SECONDS = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES = frozenset({"number_of_shards", "number_of_replicas", "auto_expand_replicas"})
_META = "headrace"
"""Key of the owner of an index, in its mappings' `_meta`."""
_JOINS = "headrace_joins"
"""Key of the joins for which an index keeps rows."""
_NONE = "-"
"""Value for an index that has only some rows, because another one replaces it."""
_TRUNCATED = "headrace_truncated"
"""Key of the tables that were truncated or dropped, with the version."""


_NAMES = frozenset({"invalid_index_name_exception", "invalid_alias_name_exception"})
"""Errors about the name of an index, which is made from the message's table."""


class IndexRefused(ConsumerError):
    """Elasticsearch refuses an index as configured, for example because of a misspelt analyzer. No message is the
    cause: nothing is written until this is fixed."""


@dataclass(slots=True)
class _Declared:
    """The content of [[index]] about an index, and the mappings of all fields that were requested so far."""

    settings: IndexSettings
    properties: Properties = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    rows_of: JoinTree | None = None
    """It keeps the rows of these joins, and only we search it."""


class IndexSetup:
    """The setup of one writer, which is called before it writes to an index."""

    def __init__(self, settings: ElasticsearchSettings, cluster: Cluster) -> None:
        self._settings, self._cluster = settings, cluster
        self._owners: dict[str, tuple[str, ...]] = {}
        """Owners of the indexes that are fit for writing."""
        self._refused: dict[tuple[str, tuple[str, ...]], tuple[str, float]] = {}
        """By index and owner: why it could not be used the last time, and when that was found; "" if it could."""
        self._declared: dict[str, _Declared] = {}
        self._truncated: dict[str, dict[str, int]] = {}
        """By index: the version at which all rows of a table were removed."""

    def declare(self, index: str, settings: IndexSettings, properties: Properties) -> None:
        """Declares fields of later documents: the index must have their mappings first."""
        known = self._declared.setdefault(index, _Declared(settings))
        if missing(properties, known.properties):
            known.properties = merged(known.properties, properties)
            self._owners.pop(index, None)

    def declare_rows(self, index: str, tree: JoinTree) -> None:
        """Declares rows of joins."""
        self._declared.setdefault(index, _Declared(tree.settings, rows_of=tree))

    def unfit(self, index: str, owner: tuple[str, ...]) -> str:
        """Returns why the documents of `owner` can't be written to the index; "" if they can. Raises BulkError if
        Elasticsearch does not answer, UnfitTable if it keeps the rows of other joins, and IndexRefused."""
        before, at = self._refused.get((index, owner), ("", 0.0))
        if before and time.monotonic() - at < _POLL:
            return before
        why = ""
        if index not in self._owners:
            try:
                self._owners[index] = self._prepare(index, owner)
            except _UnfitIndex as error:
                why = str(error)
            except ApiError as error:
                why = f"index {index} can't be prepared: {error}"
                if error.status in RETRY or error.status == 401 or "cluster_block" in why or error.type == GONE:
                    raise BulkError(why) from None
                self._require_taken(index, error)
            except TransportError as error:
                raise BulkError(f"can't check index {index}: {error}") from None
        if not why and (known := self._owners[index]) != owner:
            why = (
                f"index {index} has the documents of {'.'.join(known)}, and those of {'.'.join(owner)} would take "
                "their place: give these tables another `index`, such as by a second consumer"
            )
        if why and why != before:
            log.error("an index can't be used; its documents wait as dead letters", index=index, reason=why)
        self._refused[index, owner] = why, time.monotonic()
        return why

    def forget(self, index: str) -> None:
        """Forgets that the index is prepared, because it was deleted: the next write prepares it again."""
        self._owners.pop(index, None)

    def _require_taken(self, index: str, error: ApiError) -> None:
        """Raises IndexRefused if Elasticsearch refuses the configuration, and BulkError if another task has given a
        field its mapping at the same moment."""
        if error.status != 400 or error.type in _NAMES:
            return
        if "cannot be changed from type" in error.reason:
            raise BulkError(f"index {index} can't be prepared: {error}")
        if (declared := self._declared.get(index)) is not None:
            where = f"[[index]] {declared.settings.name}"
        elif self._settings.settings or self._settings.mappings_file:
            where = "[elasticsearch]"
        else:
            return
        raise IndexRefused(f"index {index} can't be made as {where} has it: {error}")

    def _prepare(self, index: str, owner: tuple[str, ...]) -> tuple[str, ...]:
        """Creates the index if it is missing, else checks that it is fit; returns its owner. Raises _UnfitIndex,
        ApiError and TransportError."""
        settings = self._settings
        try:
            found = self._cluster.index_settings(index)
        except ApiError as error:
            if error.status == 404:
                return self._create(index, owner)
            if error.status != 403:
                raise
            if settings.create_index:  # as for a write: no document is the cause
                raise BulkError(f"Elasticsearch refuses access to index {index}: {error.reason}") from None
            log.warning("the index can't be read: it may forget deletes too early", index=index)
            return owner
        if settings.deletes == "remove":
            self._require_memory(index, found)
        try:
            there = list(self._mappings(index).values())
        except ApiError as error:
            if error.status != 403 or "cluster_block" in str(error.body):
                raise
            log.warning("the mappings of the index can't be read", index=index)
            return owner
        metas = [one.get("_meta") or {} for one in there]
        self._truncated[index] = truncated_of(metas)
        if index in self._declared:
            self._require_structure(index, self._declared[index], metas)
            self._extend(index, self._declared[index], [one.get("properties", {}) for one in there])
        return self._claim(index, owner, metas)

    def truncated(self, index: str) -> dict[str, int] | None:
        """Returns the version at which all rows of a table were removed, by `database.table`: older ones that come now
        are already gone. None for an index that unfit() has not checked."""
        return self._truncated.get(index)

    def note_truncated(self, index: str, table: str, version: int) -> None:
        """Records in the index that all rows of a table that are older than the version are gone. Raises BulkError."""
        try:
            for name, one in self._mappings(index).items():
                meta = one.get("_meta") or {}
                known = meta.get(_TRUNCATED) or {}
                # As a text: not every program that writes it back keeps numbers of 64 bits.
                if int(known.get(table, 0)) < version:
                    marks = {**known, table: str(version)}
                    self._cluster.put_mapping(name, {"_meta": {**meta, _TRUNCATED: marks}})
        except (ApiError, TransportError) as error:
            raise BulkError(f"can't note in index {index} that {table} was emptied: {error}") from None

    def _create(self, index: str, owner: tuple[str, ...]) -> tuple[str, ...]:
        if not self._settings.create_index:
            raise _UnfitIndex(f"there is no index {index}: make it, or set create_index")
        body = self._body(index)
        self._require_types(index, body["mappings"])
        meta = _with_owner(body["mappings"].get("_meta"), owner)
        if (declared := self._declared.get(index)) is not None and (tree := declared.rows_of) is not None:
            if tree.structure and self._has_documents(tree.target):
                raise _other_joins(tree)
            meta = {**meta, _JOINS: tree.structure or _NONE}
        body["mappings"] = {**body["mappings"], "_meta": meta}
        if not self._cluster.create_index(index, body):  # another task of the same batch was faster
            return self._prepare(index, owner)
        log.info("index created", index=index)
        return owner

    def _body(self, index: str) -> dict[str, Any]:
        """Returns settings and mappings for a new index."""
        body, declared = self._settings.index_body(), self._declared.get(index)
        if declared is None:
            return body
        own = declared.settings
        if declared.rows_of is not None:
            given = {**body["settings"], **own.settings}
            # Writes become visible when the batch requests it.
            wanted = {"index.refresh_interval": "-1", "index.gc_deletes": body["settings"]["index.gc_deletes"]}
            wanted |= {name: value for name, value in given.items() if name.removeprefix("index.") in _SIZES}
            return {"settings": wanted, "mappings": ROWS_MAPPING}
        if own.template:
            return {"settings": {}, "mappings": {}}
        body["settings"] = {**body["settings"], **own.settings}
        own_properties = merged(own.mappings.get("properties", {}), body["mappings"].get("properties", {}))
        body["mappings"] = {**body["mappings"], **own.mappings}
        body["mappings"]["properties"] = merged(own_properties, declared.properties)
        return body

    def _extend(self, index: str, declared: _Declared, there: list[Properties]) -> None:
        """Adds the mappings of missing fields to an index. Existing ones stay: a field of another type is somebody's
        choice, and values that do not fit are refused one by one."""
        reindex = (declared.settings.on_mapping_conflict or self._settings.on_mapping_conflict) == "reindex"
        for properties in there:
            for name, has, wants in differing(declared.properties, properties):
                if name not in declared.reported and not reindex:  # the consumer has more facts about it
                    declared.reported.add(name)
                    log.warning(
                        "a field has another type than its column asks for; documents that do not fit become dead "
                        "letters",
                        index=index,
                        field=name,
                        type=has,
                        wanted=wants,
                    )
        new: Properties = {}
        for properties in there:
            new = merged(new, missing(declared.properties, properties))
        if not new or declared.settings.template or declared.rows_of is not None:
            return
        fields = names(new)
        if not self._settings.create_index:
            raise _UnfitIndex(f"index {index} has no field {', '.join(fields)}: make them, or set create_index")
        self._require_types(index, {"properties": new})
        self._cluster.put_mapping(index, {"properties": new})
        log.info("fields were added to the mapping", index=index, fields=fields)

    def _require_structure(self, index: str, declared: _Declared, metas: list[dict[str, Any]]) -> None:
        """Checks the joins: rows that are kept for others would not be found. Raises UnfitTable."""
        if (tree := declared.rows_of) is None or not tree.structure:
            return
        known = next((meta[_JOINS] for meta in metas if meta.get(_JOINS)), "")
        if known and known != tree.structure:
            raise _other_joins(tree)
        if not known and self._settings.create_index:
            self._cluster.put_mapping(index, {"_meta": {**metas[0], _JOINS: tree.structure}})

    def _has_documents(self, index: str) -> bool:
        with suppress(ApiError):  # the shards of a new index can't be queried yet
            self._cluster.call("GET", f"_cluster/health/{quote(index, safe='')}?wait_for_status=yellow&timeout=1s")
        return bool(self._cluster.call("GET", (index, "_count"), missing={"count": 0})["count"])

    def _require_types(self, index: str, mappings: dict[str, Any]) -> None:
        if found := lacking(self._cluster, mappings):
            raise _UnfitIndex(f"index {index} can't be made as it is declared: {'; '.join(found)}")

    def _require_memory(self, index: str, found: dict[str, Any]) -> None:
        """Checks that deletes are remembered at least as long as configured, in all indexes of the name."""
        wanted = self._settings.gc_deletes
        texts = [str(one.get("index.gc_deletes", "60s")) for one in found.values()]
        if all(_seconds(text) >= _seconds(wanted) for text in texts):
            return
        if self._settings.create_index:
            try:
                self._cluster.put_settings(index, {"index.gc_deletes": wanted})
            except ApiError as error:
                if error.status != 403 or "cluster_block" in str(error.body):
                    raise
            else:
                log.info("index remembers deletes for longer", index=index, before=texts[0], now=wanted)
                return
        raise _UnfitIndex(
            f"index {index} remembers deletes for {min(texts, key=_seconds)} (index.gc_deletes), and gc_deletes is "
            f"{wanted}: an older change that comes later would bring a deleted document back. Set index.gc_deletes, or "
            'lower gc_deletes, or set deletes = "tombstone"'
        )

    def _claim(self, index: str, owner: tuple[str, ...], metas: list[dict[str, Any]]) -> tuple[str, ...]:
        """Returns the owner that the index was made for; records it there if necessary, so that other processes
        know."""
        if not owner:
            return owner
        try:
            if not any(meta.get(_META) for meta in metas) and self._settings.create_index:
                self._cluster.put_mapping(index, {"_meta": _with_owner(metas[0], owner)})
                # Another process may have claimed it at the same time.
                metas = [one.get("_meta") or {} for one in self._mappings(index).values()]
        except ApiError as error:
            if error.status != 403 or "cluster_block" in str(error.body):
                raise
            log.warning("whose the index is can't be noted in it", index=index, owner=".".join(owner))
            return owner
        return next((tuple(meta[_META]) for meta in metas if meta.get(_META)), owner)

    def _mappings(self, index: str) -> dict[str, dict[str, Any]]:
        try:
            return self._cluster.mappings(index)
        except ApiError as error:
            if error.status == 404:
                raise BulkError(f"index {index} was deleted while it was checked") from None
            raise


class _UnfitIndex(Exception):
    """An index can't be used; the text says why."""


def _other_joins(tree: JoinTree) -> UnfitTable:
    return UnfitTable(
        f"the documents of index {tree.settings.name} were made with other joins, or another id or routing, and the "
        f"rows that these need are not kept: refill it with `headrace-spark rebuild --index {tree.settings.name}`, "
        "or set [[index]] back"
    )


def truncated_of(metas: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Returns from the `_meta` of the indexes of a name the newest version of each truncated table."""
    made: dict[str, int] = {}
    for meta in metas:
        for table, version in (meta.get(_TRUNCATED) or {}).items():
            made[table] = max(made.get(table, 0), int(version))
    return made


def _with_owner(meta: Any, owner: tuple[str, ...]) -> dict[str, Any]:
    return {**(meta or {}), **({_META: list(owner)} if owner else {})}


def _seconds(text: str) -> float:
    """Returns a duration in Elasticsearch's form; "-1" and "0" are none."""
    found = _DURATION.fullmatch(text)
    return int(found[1]) * _SECONDS[found[2]] if found else 0.0
