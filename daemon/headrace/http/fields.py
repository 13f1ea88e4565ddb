"""The table of a destination's status fields: each field's key in /health, its metric, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

from headrace import runtime
from headrace.destination.status import DestinationStatus
from headrace.model import State
from headrace.times import time_text

Read = Callable[[DestinationStatus], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `health` is the key in /health, with a dot for a nested one; "" for a field that is a metric only.
    `metric` is the name without its prefix `headrace_`; "" for a field that is none. A value of None is null in
    /health, and the metric has no sample: it means that something has never happened."""

    health: str
    read: Read
    metric: str = ""
    text: str = ""
    kind: Literal["counter", "gauge"] = "gauge"


def age(at: float) -> float | None:
    """Returns the seconds since `at` on the monotonic clock; None if `at` is 0, which means never."""
    return round(max(0.0, runtime.monotonic() - at), 3) if at else None


def rfc3339(at_us: int) -> str | None:
    """Returns the time of `at_us` microseconds since 1970, in UTC; None for 0."""
    return time_text(at_us) if at_us else None


def _plain(health: str, attribute: str = "") -> Field:
    return Field(health, attrgetter(attribute or health))


def _gauge(health: str, text: str, *, metric: str = "", attribute: str = "") -> Field:
    return Field(health, attrgetter(attribute or health), metric or health.replace(".", "_"), text)


def _count(health: str, text: str, *, metric: str = "", attribute: str = "") -> Field:
    return replace(_gauge(health, text, metric=metric, attribute=attribute), kind="counter")


def _age(health: str, metric: str, attribute: str, text: str) -> Field:
    read = attrgetter(attribute)
    return Field(health, lambda status: age(read(status)), metric, text)


def _rounded(attribute: str, digits: int) -> Read:
    read = attrgetter(attribute)

    def rounded(status: DestinationStatus) -> float | None:
        value = read(status)
        return None if value is None else round(value, digits)

    return rounded


def _lease(status: DestinationStatus) -> float | None:
    """Returns the seconds until the lock must be proved again; None for a lock that needs no proof, and for a
    standby."""
    return (
        round(status.holding.lease.remaining, 3)
        if status.holding.lease is not None and status.holding.lease.limited
        else None
    )


def _active(status: DestinationStatus) -> int:
    return int(status.holding.role == "ACTIVE" and not (status.holding.lease and status.holding.lease.lost))


def _standby_ready(status: DestinationStatus) -> int | None:
    return int(not status.holding.problems) if status.state is State.STANDBY else None


def _of_snapshot(key: str) -> Read:
    return lambda status: None if status.snapshots.now is None else status.snapshots.now[key]


def _archived(key: str, text: str) -> Field:
    def read(status: DestinationStatus) -> Any:
        return None if status.archive.progress is None else getattr(status.archive.progress, key)

    return Field(f"archive.{key}", read, f"archive_{key}" if text else "", text)


def _archived_until(which: Literal["oldest", "newest"]) -> tuple[Field, Field]:
    def read(status: DestinationStatus) -> int:
        progress = status.archive.progress
        return 0 if progress is None else int(getattr(progress, f"{which}_us"))

    text = f"Commit time of the {which} archived transaction, in seconds since 1970."
    return (
        Field(f"archive.{which}_at", lambda status: rfc3339(read(status))),
        Field("", lambda status: read(status) / 1e6 or None, f"archive_{which}_timestamp_seconds", text),
    )


def _commit_time(status: DestinationStatus) -> float | None:
    return (
        status.stored.position.commit_time_us / 1e6
        if status.stored.position and status.stored.position.commit_time_us
        else None
    )


FIELDS = (
    _plain("state", "state.value"),
    _plain("role", "holding.role"),
    _plain("holder", "holding.holder"),
    _gauge("healthy", "1 in a healthy state.", attribute="state.healthy"),
    Field("", _active, "active", "1 while this daemon holds the destination's lock."),
    _plain("reason"),
    _plain("message"),
    _age("state_seconds", "state_seconds", "since", "Seconds in the present state."),
    Field("position", lambda status: status.stored.position.shown() if status.stored.position else None),
    Field(
        "",
        _commit_time,
        "position_commit_timestamp_seconds",
        "Commit time of the last confirmed transaction, since 1970.",
    ),
    _plain("received.file", "received.file"),
    _plain("received.offset", "received.offset"),
    Field(
        "lag_seconds",
        _rounded("lag.seconds", 3),
        "lag_seconds",
        "Now minus the commit time of the newest confirmed change; 0 when nothing is to be confirmed.",
    ),
    Field(
        "reading_lag_seconds",
        _rounded("lag.reading", 3),
        "reading_lag_seconds",
        "The part of lag_seconds before a change is read.",
    ),
    Field(
        "publishing_lag_seconds",
        _rounded("lag.publishing", 3),
        "publishing_lag_seconds",
        "The part of lag_seconds between reading and confirmation.",
    ),
    _count("rows", "Rows published and confirmed.", attribute="published.rows"),
    _count("messages", "Messages published and confirmed.", attribute="published.messages"),
    _count("transactions", "Transactions published and confirmed.", attribute="published.transactions"),
    Field(
        "",
        lambda status: int(not status.native.reason and not status.native.of_python),
        "native",
        "1 while native code makes the rows of all tables that have come, 0 while Python makes those of some.",
    ),
    Field("native.reason", lambda status: status.native.reason or None),
    Field("native.python_tables", lambda status: status.native.of_python),
    _count("events", "Binlog events received.", attribute="received.events"),
    _count("bytes_received", "Bytes received from the source.", metric="received_bytes", attribute="received.bytes"),
    _count(
        "bytes_published",
        "Bytes of messages published and confirmed.",
        metric="published_bytes",
        attribute="published.bytes",
    ),
    _gauge("queue_bytes", "Bytes read and not yet confirmed.", attribute="published.queue_bytes"),
    _count("restarts", "Restarts after a failure."),
    _count(
        "skipped_events",
        "Events and tables passed over because the configuration says so.",
        attribute="received.skipped",
    ),
    _count(
        "undecodable_texts",
        "Texts published with ? for codes that have no Unicode character.",
        attribute="received.undecodable_texts",
    ),
    _gauge("epoch", "Epoch that the destination is held under.", attribute="holding.epoch"),
    Field(
        "lease_seconds",
        _lease,
        "lease_remaining_seconds",
        "Time until the lock has to be proved again; none for a file lock.",
    ),
    _count("takeovers", "How often this daemon got the destination's lock.", attribute="holding.takeovers"),
    _count("lease_resumes", "Lapsed leases after which the stream went on in place.", attribute="holding.resumes"),
    _count(
        "fenced",
        "Runs ended because another daemon has the destination, refused writes included.",
        attribute="holding.fenced",
    ),
    _plain("standby_problems", "holding.problems"),
    Field(
        "",
        _standby_ready,
        "standby_ready",
        "1 if this daemon is a standby that could take over at its last check, 0 if it could not; else none.",
    ),
    _plain("last_error"),
    Field("last_error_at", lambda status: rfc3339(status.last_error_at_us)),
    _age(
        "last_event_seconds",
        "last_event_age_seconds",
        "received.event_at",
        "Seconds since the last event or heartbeat from the source.",
    ),
    Field(
        "oldest_unconfirmed_seconds",
        lambda status: age(status.published.oldest_at) or 0.0,
        "oldest_unconfirmed_seconds",
        "Age of the oldest unconfirmed message; 0 without one.",
    ),
    _age(
        "last_checkpoint_seconds",
        "last_checkpoint_age_seconds",
        "stored.written_at",
        "Seconds since the position was last stored.",
    ),
    _plain("source.address", "source.address"),
    _plain("source.server_uuid", "source.uuid"),
    _plain("source.server_id", "source.server_id"),
    _count("reconnects", "Dumps begun again in place, without a restart.", attribute="source.reconnects"),
    _plain("troubles"),
    Field("heartbeat.round_trip_seconds", _rounded("heartbeat.last", 6)),
    _age(
        "heartbeat.seen_seconds",
        "heartbeat_age_seconds",
        "heartbeat.seen_at",
        "Seconds since our own heartbeat came back in the binlog.",
    ),
    _gauge(
        "retention.seconds",
        "Time until the source purges the binlog that we need.",
        metric="binlog_retention_seconds",
        attribute="retention.seconds",
    ),
    _gauge(
        "retention.bytes",
        "Binlog between the oldest that the source keeps and our position.",
        metric="binlog_retention_bytes",
        attribute="retention.bytes",
    ),
    _gauge(
        "retention.share",
        "The part of the source's retention that our position has left, 0 to 1.",
        metric="binlog_retention_share",
        attribute="retention.share",
    ),
    Field("retention.warning", lambda status: status.troubles.get("retention", "")),
    _archived("file", ""),
    _archived("offset", ""),
    _archived("bytes", "Bytes that the archive takes, if this destination keeps it."),
    *_archived_until("oldest"),
    *_archived_until("newest"),
    _gauge("backlog.bytes", "Binlog between the stored position and the source's end."),
    Field(
        "backlog.bytes_per_second",
        _rounded("backlog.rate", 1),
        "backlog_bytes_per_second",
        "Binlog received in a second, between the last two readings of the source's end.",
    ),
    Field(
        "backlog.eta_seconds",
        _rounded("backlog.eta", 1),
        "backlog_eta_seconds",
        "Time until nothing is left of the backlog; none unless it catches up.",
    ),
    _gauge("parked.messages", "Messages that the sink refused and later ones of the same rows, to be sent again."),
    _gauge("parked.bytes", "Bytes of these messages."),
    _gauge("parked.need_operator", "Those of them that need an operator.", attribute="parked.needs_operator"),
    Field("parked.oldest_at", lambda status: rfc3339(status.parked.oldest_us)),
    _plain("search", "search.now"),
    _plain("snapshot", "snapshots.now"),
    _plain("snapshots_ended", "snapshots.ended"),
    *(
        Field("", _of_snapshot(key), f"snapshot_{key}", text)
        for key, text in (
            ("rows", "Rows passed by the snapshot under way."),
            ("rows_left", "Rows that it has not read, as the source estimates them."),
            ("rows_per_second", "Rows that it passes in a second."),
            ("eta_seconds", "Time that it needs at this rate."),
            ("tables_done", "Tables that it has read."),
            ("waiting", "Snapshots that wait for it."),
        )
    ),
    _plain("lost", "lost_kind"),
    Field("gap", lambda status: status.moves.last.to_dict() if status.moves.last else None),
)
"""In the order of /health."""


def describe_tables(status: DestinationStatus) -> list[dict[str, Any]]:
    """Returns the tables, those with the most rows first."""
    return [
        {
            "database": one.schema,
            "table": one.table,
            "inserted": one.inserted,
            "updated": one.updated,
            "deleted": one.deleted,
            "snapshot": one.snapshot,
            "last_at": rfc3339(one.commit_time_us),
        }
        for one in sorted(status.published.tables.all(), key=lambda one: -one.total)
    ]
