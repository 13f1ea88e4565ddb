"""What Spark says of the query while it runs."""

from __future__ import annotations

import json
from typing import Any

import structlog
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace_spark.outages.outages import KAFKA, QUERY
from headrace_spark.status.status import Status

log = structlog.get_logger("headrace_spark.query.query")


class Listener(StreamingQueryListener):
    """Tells the status. Spark calls it in a thread of its own."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - these names are Spark's
        self._status.query_runs(True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._goes_on()
        for source in event.progress.sources:
            self._status.read_up_to(offsets_of(source.endOffset))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._goes_on()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self._status.query_runs(False)

    def _goes_on(self) -> None:
        self._status.sign()
        self._status.outages.over(KAFKA, "query")
        self._status.outages.over(QUERY)


def offsets_of(text: Any) -> dict[tuple[str, int], int]:
    """Offsets as Spark writes them, {"topic": {"0": 17}}; none for what is nothing of the kind."""
    try:
        topics = json.loads(text) if isinstance(text, str) else text
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}
