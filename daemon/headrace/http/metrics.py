"""The content of /metrics: the destinations' status objects as Prometheus metrics, read once for all simultaneous
requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import structlog
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace import __version__, runtime
from headrace.destination.facts import ROUND_TRIP_BUCKETS
from headrace.destination.status import MOVE_REASONS, TROUBLES, DestinationStatus
from headrace.http.facts import Facts
from headrace.http.fields import FIELDS
from headrace.model import State, TableRows
from headrace.tasks import cancel

log = structlog.get_logger(__name__)

SHARED = 1.0
"""Seconds for which all requests get the same text."""


class _Read(Collector):
    """Metrics as they were at one moment."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


class Metrics:
    """Headrace's own metrics, read from the destinations' status objects on request, and those of the process (memory,
    CPU, open files)."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._process = ProcessCollector(registry=None)
        self._reading: asyncio.Task[bytes] | None = None
        self._read_at = 0.0

    async def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format, at most SHARED and the reading time old."""
        now = runtime.monotonic()
        if self._reading is None or (self._reading.done() and now - self._read_at >= SHARED):
            self._read_at = now
            self._reading = asyncio.create_task(self._read(), name="metrics")
        return await asyncio.shield(self._reading)

    async def close(self) -> None:
        await cancel(self._reading)

    async def _read(self) -> bytes:
        """Reads the destinations, one metric in each turn of the loop. The many metrics of tables are only collected
        there: a thread makes and prints them, which takes a second for thirty thousand tables."""
        metrics = [*self._process.collect()]
        for metric in self._collect():
            metrics.append(metric)
            await asyncio.sleep(0)
        own = {metric.name for metric in metrics}
        metrics += [metric for metric in self._measures() if metric.name not in own]
        tables = {destination: status.published.tables.all() for destination, status in self._facts.statuses.items()}
        native = {destination: _native_tables(status) for destination, status in self._facts.statuses.items()}
        return await runtime.in_thread(lambda: generate_latest(_Read([*metrics, *_tables(tables), _native(native)])))

    def _collect(self) -> Iterator[Metric]:
        """Yields all metrics but those of tables."""
        info = GaugeMetricFamily("headrace_info", "Node and version; always 1.", labels=("node", "version"))
        info.add_metric((self._facts.node, __version__), 1)
        yield info
        yield GaugeMetricFamily(
            "headrace_config_errors",
            "Problems of configuration files that changed while running.",
            value=len(self._facts.config_errors),
        )
        yield GaugeMetricFamily(
            "headrace_loop_delay_seconds", "Last delay of the event loop.", value=self._facts.delay.last
        )
        yield GaugeMetricFamily(
            "headrace_loop_delay_max_seconds",
            "Largest delay of the event loop in a minute.",
            value=self._facts.delay.largest,
        )
        yield from self._states()
        yield from self._fields()
        yield from self._cluster_counts()
        yield self._round_trips()
        yield self._gaps()
        yield self._troubles()

    def _fields(self) -> Iterator[Metric]:
        for field in FIELDS:
            if field.metric:
                family = CounterMetricFamily if field.kind == "counter" else GaugeMetricFamily
                metric = family(f"headrace_{field.metric}", field.text, labels=("destination",))
                for destination, status in self._facts.statuses.items():
                    if (value := field.read(status)) is not None:
                        metric.add_metric((destination,), float(value))
                yield metric

    def _measures(self) -> Iterator[Metric]:
        """Yields the metrics that adapters publish."""
        found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for destination, handle in self._facts.handles.items():
            try:
                measures = [(one, float(one.value)) for one in handle.measures()]
            except Exception:  # foreign code: its error must not remove the other metrics
                log.exception("what source or sink measures can't be read", destination=destination)
                continue
            for one, value in measures:
                family = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
                name = f"headrace_{one.name}"
                metric = found.setdefault(name, family(name, one.text, labels=("destination",)))
                metric.add_metric((destination,), value)
        yield from found.values()

    def _states(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "headrace_state", "1 for the state that the destination is in.", labels=("destination", "state")
        )
        for destination, status in self._facts.statuses.items():
            for one in State:
                state.add_metric((destination, one.value), int(one is status.state))
        yield state

    def _cluster_counts(self) -> Iterator[Metric]:
        if self._facts.cluster is None:
            return
        counts = self._facts.cluster.counts
        service = f"headrace_{counts.service}"
        text = "Sessions with the cluster service: the first, and one for each that was lost."
        yield CounterMetricFamily(f"{service}_sessions", text, value=counts.sessions)
        text = "Connections to the cluster service that broke, within a session or with it."
        yield CounterMetricFamily(f"{service}_suspensions", text, value=counts.suspensions)
        text = "Attempts to take a lock that looked free."
        yield CounterMetricFamily("headrace_lock_attempts", text, value=counts.attempts)
        fenced = CounterMetricFamily(
            "headrace_fenced_writes",
            "Writes of the position that the cluster service refused, because another daemon has the destination.",
            labels=("destination",),
        )
        for destination in self._facts.handles:
            fenced.add_metric((destination,), counts.fenced_writes.get(destination, 0))
        yield fenced

    def _round_trips(self) -> Metric:
        family = HistogramMetricFamily(
            "headrace_heartbeat_round_trip_seconds",
            "From the writing of a heartbeat to its return in the binlog.",
            labels=("destination",),
        )
        bounds = [*map(str, ROUND_TRIP_BUCKETS), "+Inf"]
        for destination, status in self._facts.statuses.items():
            buckets = list(zip(bounds, accumulate(status.heartbeat.counts), strict=True))
            family.add_metric((destination,), buckets, status.heartbeat.total)
        return family

    def _gaps(self) -> Metric:
        counter = CounterMetricFamily(
            "headrace_position_moves",
            "Moves of the position by a policy, which gave something up.",
            labels=("destination", "reason"),
        )
        for destination, status in self._facts.statuses.items():
            # From 0 on: a counter whose first value is 1 never increased, so no alert would see it.
            for reason, count in (dict.fromkeys(MOVE_REASONS, 0) | status.moves.counts).items():
                counter.add_metric((destination, reason), count)
        return counter

    def _troubles(self) -> Metric:
        gauge = GaugeMetricFamily(
            "headrace_trouble",
            "1 for each trouble that the destination has although changes flow, 0 for the others.",
            labels=("destination", "reason"),
        )
        for destination, status in self._facts.statuses.items():
            for reason in TROUBLES:
                gauge.add_metric((destination, reason), int(reason in status.troubles))
        return gauge


def _tables(totals: Mapping[str, Sequence[TableRows]]) -> Iterator[Metric]:
    rows = CounterMetricFamily(
        "headrace_table_rows",
        "Rows of a table published and confirmed, by what was done to them.",
        labels=("destination", "database", "table", "operation"),
    )
    last = GaugeMetricFamily(
        "headrace_table_last_change_timestamp_seconds",
        "Commit time of the last confirmed row of a table, since 1970.",
        labels=("destination", "database", "table"),
    )
    for destination, tables in totals.items():
        for one in tables:
            labels = (destination, one.schema, one.table)
            last.add_metric(labels, one.commit_time_us / 1e6)
            counts = {
                "insert": one.inserted,
                "update": one.updated,
                "delete": one.deleted,
                "snapshot": one.snapshot,
            }
            for operation, count in counts.items():
                rows.add_metric((*labels, operation), count)
    yield rows
    yield last


def _native_tables(status: DestinationStatus) -> dict[tuple[str, str], bool]:
    """Returns by schema and table whether native code makes the rows."""
    if status.native.reason:
        return {(one.schema, one.table): False for one in status.published.tables.all() if one.schema}
    return {name: not reason for name, reason in status.native.tables.items()}


def _native(tables: Mapping[str, Mapping[tuple[str, str], bool]]) -> Metric:
    gauge = GaugeMetricFamily(
        "headrace_table_native",
        "1 where native code makes the rows of a table, 0 where Python does.",
        labels=("destination", "database", "table"),
    )
    for destination, found in tables.items():
        for name, native in found.items():
            gauge.add_metric((destination, *name), int(native))
    return gauge
