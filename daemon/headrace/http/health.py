"""What /health says: each destination's state and progress as JSON, and 200 or 503 for a monitor."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from headrace import __version__
from headrace.destination.status import DestinationStatus


def health(
    statuses: Mapping[str, DestinationStatus], node: str, config_errors: Sequence[str] = ()
) -> tuple[int, dict[str, Any]]:
    """HTTP status and body for all destinations: 200 only when every one is healthy, and there is one.

    `config_errors`, what was refused of files that changed while running, does not touch the status: what runs is well.
    """
    well = bool(statuses) and all(status.state.healthy for status in statuses.values())
    return (200 if well else 503), {
        "status": "ok" if well else "failing",
        "node": node,
        "version": __version__,
        "config_errors": list(config_errors),
        "destinations": {name: describe(status) for name, status in statuses.items()},
    }


def describe(status: DestinationStatus) -> dict[str, Any]:
    """One destination. Ages are seconds; null where there was no such event yet."""
    now = time.monotonic()
    return {
        "state": status.state.value,
        "role": status.role,
        "holder": status.holder,
        "healthy": status.state.healthy,
        "reason": status.reason,
        "message": status.message,
        "state_seconds": age(status.since, now),
        "position": status.position.to_dict() if status.position else None,
        "received": {"file": status.received_file, "offset": status.received_offset},
        "lag_seconds": round(status.lag_seconds, 3),
        "rows": status.rows,
        "messages": status.messages,
        "transactions": status.transactions,
        "events": status.events,
        "bytes_received": status.bytes_received,
        "bytes_published": status.bytes_published,
        "queue_bytes": status.queue_bytes,
        "restarts": status.restarts,
        "skipped_events": status.skipped_events,
        "epoch": status.epoch,
        "lease_seconds": _lease(status),
        "takeovers": status.takeovers,
        "lease_resumes": status.resumes,
        "fenced": status.fenced,
        "standby_problems": status.standby_problems,
        "last_error": status.last_error,
        "last_error_at": rfc3339(status.last_error_at_us),
        "last_event_seconds": age(status.last_event_at, now),
        "oldest_unconfirmed_seconds": age(status.oldest_unconfirmed_at, now) or 0.0,
        "last_checkpoint_seconds": age(status.last_checkpoint_at, now),
        "loop_delay_seconds": round(status.loop_delay, 6),
        "source": {"address": status.source_address, "server_uuid": status.source_uuid, "server_id": status.server_id},
        "reconnects": status.reconnects,
        "troubles": status.troubles,
        "heartbeat": {
            "round_trip_seconds": None if status.round_trips.last is None else round(status.round_trips.last, 6),
            "seen_seconds": age(status.beat_seen_at, now),
        },
        "headroom": {
            "seconds": status.headroom_seconds,
            "bytes": status.headroom_bytes,
            "warning": status.headroom_warning,
        },
        "failed": {
            "messages": status.parked.messages,
            "bytes": status.parked.bytes,
            "manual": status.parked.manual,
            "oldest_at": rfc3339(status.parked.oldest_us),
        },
        "lost": status.lost_kind,
        "gap": status.gap.to_dict() if status.gap else None,
    }


def ready(statuses: Mapping[str, DestinationStatus], destination: str) -> tuple[int, dict[str, Any]]:
    """For load balancers: 200 for `destination` only where it is run and changes flow; 404 for one that there is not.
    With "" 200 when all destinations are healthy."""
    if not destination:
        well = bool(statuses) and all(status.state.healthy for status in statuses.values())
        return (200 if well else 503), {"ready": well}
    status = statuses.get(destination)
    if status is None:
        return 404, {"error": f"there is no destination {destination}", "destinations": sorted(statuses)}
    well = status.role == "ACTIVE" and status.state.healthy and (status.lease is None or status.lease.remaining > 0)
    return (200 if well else 503), {
        "ready": well,
        "destination": destination,
        "role": status.role,
        "state": status.state.value,
        "holder": status.holder,
    }


def _lease(status: DestinationStatus) -> float | None:
    """Seconds until the lock has to be proved again; None for a lock that needs no proof, and while standing by."""
    return round(status.lease.remaining, 3) if status.lease is not None and status.lease.limited else None


def age(at: float, now: float) -> float | None:
    """Seconds from `at` to `now` on the monotonic clock; None when `at` is 0, which means never."""
    return round(max(0.0, now - at), 3) if at else None


def rfc3339(at_us: int) -> str | None:
    """The time of `at_us` microseconds since 1970, in UTC; None for 0."""
    if not at_us:
        return None
    seconds, micros = divmod(at_us, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micros:06}Z"
