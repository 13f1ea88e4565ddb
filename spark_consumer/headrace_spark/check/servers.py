"""Checks the cluster of [elasticsearch]: version, licence, health, disks, and the account's rights."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from headrace_documents.cli import Findings
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError, TransportError
from headrace_documents.settings import ElasticsearchSettings

_ABOUT = "Elasticsearch"


def check_servers(findings: Findings, cluster: Cluster, settings: ElasticsearchSettings) -> int:
    """Checks the cluster as a whole; returns the number of data nodes, 0 if unknown. Raises TransportError."""
    hosts = ", ".join(settings.hosts)
    findings.ok(_ABOUT, f"{cluster.product} at {hosts}")
    licence = _ask(cluster, "_license")
    if isinstance(licence, dict) and (found := licence.get("license")):
        status = found.get("status")
        if status == "active":
            findings.ok(_ABOUT, f"its licence, {found.get('type')}, is active")
        else:
            findings.wrong(_ABOUT, f"its licence, {found.get('type')}, is {status}", "renew it")
    nodes = _check_health(findings, cluster)
    _check_blocks(findings, cluster)
    _check_disks(findings, cluster)
    return nodes


def _ask(cluster: Cluster, path: str) -> Any:
    """Returns None if the cluster does not have it, or the account may not see it."""
    try:
        return cluster.call("GET", path)
    except ApiError:
        return None


def _check_health(findings: Findings, cluster: Cluster) -> int:
    health = _ask(cluster, "_cluster/health")
    if not isinstance(health, dict):
        findings.warn(_ABOUT, "the account may not see its health", "give it the right monitor, if that is wanted")
        return 0
    nodes, status = int(health.get("number_of_data_nodes", 0)), health.get("status")
    reported = f"health is {status}, {nodes} data node{'s' * (nodes != 1)}"
    if status == "red":
        findings.wrong(_ABOUT, reported, "see GET _cluster/allocation/explain: some shards take no documents")
    elif status == "yellow" and nodes > 1:
        findings.warn(_ABOUT, reported, "see GET _cluster/allocation/explain: some copies of shards are missing")
    else:
        findings.ok(_ABOUT, reported)
    return nodes


def _check_blocks(findings: Findings, cluster: Cluster) -> None:
    found = _ask(cluster, "_cluster/settings?flat_settings=true")
    for part in found.values() if isinstance(found, dict) else ():
        for name, value in part.items() if isinstance(part, dict) else ():
            if name.startswith("cluster.blocks.") and str(value) == "true":
                findings.wrong(_ABOUT, f"the whole cluster is blocked: {name}", f"set {name} to null")


def _check_disks(findings: Findings, cluster: Cluster) -> None:
    rows = _ask(cluster, "_cat/allocation?format=json&bytes=b")
    marks = _ask(cluster, "_cluster/settings?include_defaults=true&flat_settings=true")
    if not isinstance(rows, list) or not isinstance(marks, dict):
        return
    known = {**marks.get("defaults", {}), **marks.get("persistent", {}), **marks.get("transient", {})}
    prefix = "cluster.routing.allocation.disk."
    if str(known.get(f"{prefix}threshold_enabled", "true")) != "true":
        findings.ok(_ABOUT, "watermarks of disks are off")
        return
    for row in rows:
        total, free = _whole(row.get("disk.total")), _whole(row.get("disk.avail"))
        if not total:
            continue
        for mark, state in (("flood_stage", "wrong"), ("high", "warning"), ("low", "warning")):
            limit = str(known.get(f"{prefix}watermark.{mark}", ""))
            if limit.endswith("%") and 100 * (total - free) / total >= float(limit[:-1]):
                report = findings.wrong if state == "wrong" else findings.warn
                report(
                    _ABOUT,
                    f"the disk of {row.get('node')} is {100 * (total - free) / total:.0f} % full, beyond the watermark "
                    f"{mark} ({limit})",
                    "make room: at the flood stage indexes take no documents any more",
                )
                break


def _whole(text: Any) -> int:
    return int(text) if str(text or "").isdigit() else 0


# -- rights -----------------------------------------------------------------------------------------------------------


def check_rights(findings: Findings, cluster: Cluster, settings: ElasticsearchSettings, names: Iterable[str]) -> None:
    """Checks whether the account may do what a run does: queries it if security is on; else tries it with an index that
    is created and deleted. Raises TransportError."""
    names = sorted(names)
    if not names:
        return
    wanted = ["index", "delete"]
    if settings.create_index:
        wanted += ["create_index", "view_index_metadata", "manage"]
    try:
        answer = cluster.call(
            "POST", "_security/user/_has_privileges", {"index": [{"names": names, "privileges": wanted}]}
        )
    except ApiError:
        _try_rights(findings, cluster, settings, names[0])
        return
    if answer.get("has_all_requested"):
        findings.ok("rights", f"the account has {', '.join(wanted)} on {_some(names)}")
        return
    for name, rights in answer.get("index", {}).items():
        if missing := [one for one in wanted if not rights.get(one)]:
            findings.wrong("rights", f"the account has no {', '.join(missing)} on {name}", "give it the privileges")


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _try_rights(findings: Findings, cluster: Cluster, settings: ElasticsearchSettings, name: str) -> None:
    if not settings.create_index:
        findings.ok("rights", "not tried: with create_index = false no index is made, and none of yours is written to")
        return
    trial = f"{name[:200]}-headrace-check-{uuid.uuid4().hex[:8]}"
    try:
        try:
            body = {"settings": {"index.number_of_shards": 1, "index.number_of_replicas": 0}}
            cluster.create_index(trial, body)
            document = f"{trial}/_doc/1?version=7&version_type=external_gte"
            cluster.call("PUT", document, {"tried": True})
            cluster.call("DELETE", document)
        finally:
            # Also if its creation was not answered: it may exist.
            _remove(findings, cluster, trial)
    except ApiError as error:
        findings.wrong(
            "rights", f"an index such as {trial} can't be made and written: {error}", "see the account's role"
        )
    else:
        findings.ok("rights", f"index {trial} was made, written to and deleted again")


def _remove(findings: Findings, cluster: Cluster, name: str) -> None:
    try:
        cluster.call("DELETE", (name,))
    except ApiError as error:
        if error.status not in (403, 404):
            findings.warn("rights", f"index {name} of this check can't be deleted: {error}", f"DELETE /{name}")
    except TransportError as error:
        findings.warn("rights", f"index {name} of this check may be left: {error}", f"DELETE /{name}")
