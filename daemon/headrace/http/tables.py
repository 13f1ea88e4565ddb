"""What the API says of a destination's tables: how many rows of each were confirmed."""

from __future__ import annotations

from typing import Any

from headrace.destination.status import DestinationStatus
from headrace.http.fields import rfc3339


def describe_tables(status: DestinationStatus) -> list[dict[str, Any]]:
    """The tables with the most rows first."""
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
