"""The content of /health: each destination's state and progress as JSON, and 200 or 503 for monitoring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import __version__
from headrace.destination.status import DestinationStatus
from headrace.http.facts import Facts
from headrace.http.fields import FIELDS


def health(facts: Facts) -> tuple[int, dict[str, Any]]:
    """Returns HTTP status and body for all destinations: 200 only if there is one and every one is healthy.

    `config_errors`, the errors of files that changed while running, does not affect the status: the destinations keep
    running."""
    statuses = facts.statuses
    well = bool(statuses) and all(status.state.healthy for status in statuses.values())
    return (200 if well else 503), {
        "status": "ok" if well else "failing",
        "node": facts.node,
        "version": __version__,
        "native": facts.native,
        "loop_delay_seconds": round(facts.delay.last, 6),
        "config_errors": list(facts.config_errors),
        "destinations": {name: describe(status) for name, status in statuses.items()},
    }


def describe(status: DestinationStatus) -> dict[str, Any]:
    """Returns the content for one destination. Ages are in seconds; null if the event has not happened yet."""
    page: dict[str, Any] = {}
    for field in FIELDS:
        *outer, key = field.health.split(".")
        if key:
            inner = page.setdefault(outer[0], {}) if outer else page
            inner[key] = field.read(status)
    return page


def ready(statuses: Mapping[str, DestinationStatus], destination: str) -> tuple[int, dict[str, Any]]:
    """Returns the answer for load balancers: 200 for `destination` only on the daemon that runs it, while changes flow;
    404 if it does not exist. With "" 200 if all destinations are healthy."""
    if not destination:
        well = bool(statuses) and all(status.state.healthy for status in statuses.values())
        return (200 if well else 503), {"ready": well}
    status = statuses.get(destination)
    if status is None:
        return 404, {"error": f"there is no destination {destination}", "destinations": sorted(statuses)}
    well = (
        status.holding.role == "ACTIVE"
        and status.state.healthy
        and (status.holding.lease is None or status.holding.lease.remaining > 0)
    )
    return (200 if well else 503), {
        "ready": well,
        "destination": destination,
        "role": status.holding.role,
        "state": status.state.value,
        "holder": status.holding.holder,
    }
