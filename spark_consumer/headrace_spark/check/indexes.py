"""Compares each index that documents go into with what is planned, by a dry run that changes nothing."""

from __future__ import annotations

import re
from typing import Any, Literal

from headrace_documents.cli import Findings
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.mappings import lacking
from headrace_documents.errors import ApiError
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.indexes.types import Property
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.check.contents import Wanted

_TEXTS = frozenset({"text", "keyword", "wildcard", "match_only_text", "search_as_you_type", "annotated_text"})
_WHOLE = {"byte": 7, "short": 15, "integer": 31, "long": 63, "unsigned_long": 64}
"""Bits of the largest value."""
_FRACTIONS = {"half_float": 11, "float": 24, "scaled_float": 53, "double": 53}
"""Bits that are kept."""
_NUMBERS = _WHOLE.keys() | _FRACTIONS.keys()
_DATES = frozenset({"date", "date_nanos"})
_SCALARS = _TEXTS | _NUMBERS | _DATES | {"boolean", "ip", "binary"}

Difference = tuple[Literal["warning", "wrong"], str]


def difference(planned: Property, there: Property) -> Difference | None:
    """Returns how a difference of types affects values; None if the types are equal."""
    want, have = planned.get("type", "object"), there.get("type", "object")
    if want == have:
        analyzers = planned.get("analyzer"), there.get("analyzer")
        if analyzers[0] and analyzers[0] != analyzers[1]:
            return "warning", f"has the analyzer {analyzers[1] or 'standard'}, and {analyzers[0]} is planned"
        return None
    reported = f"is {have}, and {want} is planned: "
    if have in _TEXTS and want in _SCALARS:
        return "warning", reported + "values are searched and sorted as texts"
    if want in _NUMBERS and have in _NUMBERS:
        return "warning", reported + _numbers(want, have)
    if want in _WHOLE and have in _DATES:
        return "warning", reported + "numbers count as milliseconds since 1970"
    if want == "keyword" and have in _NUMBERS:
        return "warning", reported + "texts that are no numbers are refused"
    if want in _TEXTS and have == "binary":
        return "wrong", reported + "texts that are not base64 are refused"
    return "wrong", reported + "documents are refused"


def _numbers(want: str, have: str) -> str:
    if have in _WHOLE:
        if want in _FRACTIONS:
            return "digits after the point are cut off"
        return "larger numbers are refused" if _WHOLE[have] < _WHOLE[want] else "all numbers fit"
    kept = _WHOLE.get(want) or _FRACTIONS[want]
    return "digits may be lost" if _FRACTIONS[have] < kept else "all numbers fit"


_BLOCKS = ("read_only", "read_only_allow_delete", "write")
_DURATION = re.compile(r"(\d+)(nanos|micros|ms|s|m|h|d)")
_SECONDS = {"nanos": 1e-9, "micros": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Targets:
    """Checks indexes. Its methods raise TransportError."""

    def __init__(self, findings: Findings, cluster: Cluster, settings: ElasticsearchSettings, nodes: int) -> None:
        self._findings, self._cluster, self._settings, self._nodes = findings, cluster, settings, nodes

    def check(self, name: str, wanted: Wanted) -> None:
        """Checks one index."""
        about = f"index {name}"
        self._check_types(about, wanted)
        try:
            found = self._cluster.call("GET", (name,), flat_settings="true")
        except ApiError as error:
            if error.status == 404:
                self._check_new(about, name, wanted)
            else:
                self._findings.wrong(about, f"can't be read: {error}", "give the account view_index_metadata on it")
            return
        if name not in found:
            self._findings.ok(about, f"is an alias of {', '.join(sorted(found))}")
            writers = [one for one in found.values() if one.get("aliases", {}).get(name, {}).get("is_write_index")]
            if len(found) > 1 and not writers:
                self._findings.wrong(
                    about, "is an alias of several indexes, and none is for writing", "set is_write_index"
                )
        for real, body in found.items():
            self._check_there(f"index {real}", body, wanted)
        self._check_analyzers(about, name, wanted, {})

    # -- an index that is there -----------------------------------------------------------------------------------

    def _check_there(self, about: str, body: dict[str, Any], wanted: Wanted) -> None:
        findings, settings = self._findings, body.get("settings", {})
        blocks = [one for one in _BLOCKS if str(settings.get(f"index.blocks.{one}")) == "true"]
        if blocks:
            more = "; a full disk does that" if "read_only_allow_delete" in blocks else ""
            findings.wrong(about, f"takes no documents: index.blocks.{blocks[0]}{more}", "take the block away")
        self._check_memory(about, settings)
        owner = (body.get("mappings", {}).get("_meta") or {}).get("headrace")
        if owner and wanted.owner and tuple(owner) != wanted.owner:
            findings.wrong(
                about,
                f"has the documents of {'.'.join(owner)}, and {'.'.join(wanted.owner)} would take their place",
                "give these tables another index",
            )
        self._check_copies(about, settings)
        there = body.get("mappings", {}).get("properties", {})
        if not self._check_fields(about, there, wanted) and not blocks:
            findings.ok(about, f"is there with {len(there)} fields, all of the types that are planned")

    def _check_memory(self, about: str, settings: dict[str, Any]) -> None:
        wanted, text = self._settings.gc_deletes, str(settings.get("index.gc_deletes", "60s"))
        if self._settings.deletes != "remove" or _seconds(text) >= _seconds(wanted):
            return
        reported = f"remembers deletes for {text} (index.gc_deletes), and gc_deletes is {wanted}"
        if self._settings.create_index:
            self._findings.ok(about, f"{reported}: it is given that at the first write")
        else:
            self._findings.wrong(about, reported, "set index.gc_deletes, lower gc_deletes, or set create_index")

    def _check_copies(self, about: str, settings: dict[str, Any]) -> None:
        copies = str(settings.get("index.number_of_replicas", "1"))
        shards = str(settings.get("index.number_of_shards", "1"))
        if str(settings.get("index.auto_expand_replicas", "false")) != "false" or not self._nodes:
            return
        if copies.isdigit() and int(copies) >= self._nodes:
            nodes = f"{self._nodes} data node{'s' * (self._nodes > 1)}"
            self._findings.warn(
                about,
                f"{shards} shards and {copies} replicas, and the cluster has {nodes}: not all copies find a place",
                f"set index.number_of_replicas to {self._nodes - 1}, or add nodes",
            )

    def _check_fields(self, about: str, there: dict[str, Property], wanted: Wanted) -> bool:
        """Returns whether anything was reported."""
        reported, new = False, []
        for name, planned in wanted.properties.items():
            if name not in there:
                new.append(name)
            elif found := difference(planned, there[name]):
                state, text = found
                report = self._findings.wrong if state == "wrong" else self._findings.warn
                report(
                    about, f"field {name} {text}", "write into a new index, or give the field that `type` in [[index]]"
                )
                reported = True
        if new and not (wanted.settings and wanted.settings.template):
            fields = f"{len(new)} fields ({', '.join(sorted(new)[:5])}{' ...' if len(new) > 5 else ''})"
            if self._settings.create_index:
                self._findings.ok(about, f"{fields} are added before the first document that has them")
            else:
                self._findings.wrong(about, f"{fields} are missing", "make them, or set create_index")
            reported = True
        return reported

    # -- an index that is to be made ------------------------------------------------------------------------------

    def _check_new(self, about: str, name: str, wanted: Wanted) -> None:
        findings, own = self._findings, wanted.settings
        if not self._settings.create_index:
            findings.wrong(about, "is not there", "make it, or set create_index")
            return
        template = self._template(name)
        if own is not None and own.template:
            if not template:
                findings.wrong(about, "no index template matches its name, and template = true", "put the template")
            return
        more = f", and a template of the cluster adds {', '.join(template)}" if template else ""
        findings.ok(about, f"is not there yet; it is made with {len(wanted.properties)} fields of known types{more}")
        body = {**self._settings.settings, **(own.settings if own is not None else {})}
        given = {key if key.startswith("index.") else f"index.{key}": value for key, value in body.items()}
        self._check_copies(about, {**template.get("settings", {}), **given})
        self._check_analyzers(about, "", wanted, given)

    def _template(self, name: str) -> dict[str, Any]:
        """Returns what a template of the cluster would give the index; nothing if there is none, or it can't be
        queried."""
        try:
            found = self._cluster.call("POST", ("_index_template", "_simulate_index", name), {})
        except ApiError:
            return {}
        template = found.get("template", {}) if isinstance(found, dict) else {}
        made = {key: value for key, value in template.items() if value}
        settings = made.get("settings", {}).get("index", {})
        # Each index has these without a template.
        plain = settings.keys() <= {"routing"} and not made.get("mappings") and not made.get("aliases")
        if plain:
            return {}
        return {**made, "settings": {f"index.{key}": value for key, value in settings.items()}}

    # -- both -----------------------------------------------------------------------------------------------------

    def _check_types(self, about: str, wanted: Wanted) -> None:
        for why in lacking(self._cluster, {"properties": wanted.properties}):
            self._findings.wrong(about, why, "give the field another `type`")

    def _check_analyzers(self, about: str, index: str, wanted: Wanted, settings: dict[str, Any]) -> None:
        if any(key.startswith("index.analysis") for key in settings):
            return  # an analyzer of the index itself, which does not exist yet
        for name in sorted(analyzers(wanted.properties, wanted.settings)):
            path: list[str] = [index, "_analyze"] if index else ["_analyze"]
            try:
                self._cluster.call("POST", path, {"analyzer": name, "text": "headrace"})
            except ApiError as error:
                if error.status not in (400, 404):
                    continue
                self._findings.wrong(
                    about,
                    f"the cluster has no analyzer {name}",
                    "install its plugin on each node (analysis-smartcn, analysis-ik ...), or name another `analyzer`",
                )


def analyzers(properties: dict[str, Property], settings: IndexSettings | None) -> set[str]:
    """Returns the analyzers that mappings name."""
    found = {settings.analyzer} if settings is not None and settings.analyzer else set()
    for one in properties.values():
        found |= {str(one[key]) for key in ("analyzer", "search_analyzer") if key in one}
        for part in ("fields", "properties"):
            if isinstance(one.get(part), dict):
                found |= analyzers(one[part], None)
    return found


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text)
    return int(found[1]) * _SECONDS[found[2]] if found else 0.0
