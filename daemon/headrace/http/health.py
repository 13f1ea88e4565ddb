"""What /health says: each destination's state and progress as JSON, and 200 or 503 for a monitor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import __version__
from headrace.destination.status import DestinationStatus
from headrace.http.facts import Facts
from headrace.http.fields import FIELDS


def health(facts: Facts) -> tuple[int, dict[str, Any]]:
    """HTTP status and body for all destinations: 200 only when every one is healthy, and there is one.

    `config_errors`, what was refused of files that changed while running, does not touch the status: what runs is well.
    """
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
    """One destination. Ages are seconds; null where there was no such event yet."""
    page: dict[str, Any] = {}
    for field in FIELDS:
        *outer, key = field.health.split(".")
        if key:
            inner = page.setdefault(outer[0], {}) if outer else page
            inner[key] = field.read(status)
    return page


def ready(statuses: Mapping[str, DestinationStatus], destination: str) -> tuple[int, dict[str, Any]]:
    """For load balancers: 200 for `destination` only where it is run and changes flow; 404 for one that there is not.
    With "" 200 when all destinations are healthy."""
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
