"""What /metrics says: the destinations' status objects as Prometheus metrics, read at the moment of the request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace import __version__
from headrace.destination.status import ROUND_TRIP_BUCKETS, DestinationStatus
from headrace.http.health import age
from headrace.http.loop_delay import LoopDelay
from headrace.model import State
from headrace.ports.cluster import ClusterCounts

_COUNTERS = (
    ("rows", "rows", "Rows published and confirmed."),
    ("messages", "messages", "Messages published and confirmed."),
    ("transactions", "transactions", "Transactions published and confirmed."),
    ("events", "events", "Binlog events received."),
    ("received_bytes", "bytes_received", "Bytes received from the source."),
    ("published_bytes", "bytes_published", "Bytes of messages published and confirmed."),
    ("restarts", "restarts", "Restarts after a failure."),
    ("skipped_events", "skipped_events", "Events and tables passed over because the configuration says so."),
    ("reconnects", "reconnects", "Dumps begun again in place, without a restart."),
    ("takeovers", "takeovers", "How often this daemon got the destination's lock."),
    ("lease_resumes", "resumes", "Lapsed leases after which the stream went on in place."),
    ("fenced", "fenced", "Runs ended because another daemon has the destination, refused writes included."),
)
_GAUGES = (
    ("queue_bytes", "queue_bytes", "Bytes read and not yet confirmed."),
    ("epoch", "epoch", "Epoch that the destination is held under."),
    ("parked_messages", "parked.messages", "Messages that the sink refused and those behind them, to be sent again."),
    ("parked_bytes", "parked.bytes", "Bytes of these messages."),
    ("parked_need_operator", "parked.manual", "Those of them that need an operator."),
    ("lag_seconds", "lag_seconds", "Age of the newest change when it was read: now minus its commit time."),
)
_AGES = (
    ("last_event_age_seconds", "last_event_at", "Seconds since the last event or heartbeat from the source."),
    ("oldest_unconfirmed_seconds", "oldest_unconfirmed_at", "Age of the oldest unconfirmed message; 0 without one."),
    ("last_checkpoint_age_seconds", "last_checkpoint_at", "Seconds since the position was last stored."),
    ("state_seconds", "since", "Seconds in the present state."),
    ("heartbeat_age_seconds", "beat_seen_at", "Seconds since our own heartbeat came back in the binlog."),
)


class StatusCollector(Collector):
    """Reads the destinations' status objects whenever it is asked. `counts`: None without [zookeeper]."""

    def __init__(
        self,
        statuses: Mapping[str, DestinationStatus],
        node: str,
        delay: LoopDelay,
        config_errors: Sequence[str] = (),
        counts: ClusterCounts | None = None,
    ) -> None:
        self._statuses, self._config_errors, self._counts = statuses, config_errors, counts
        self._node = node
        self._delay = delay

    def collect(self) -> Iterator[Metric]:
        """All metrics of headrace's own."""
        info = GaugeMetricFamily("headrace_info", "Node and version; always 1.", labels=("node", "version"))
        info.add_metric((self._node, __version__), 1)
        yield info
        yield GaugeMetricFamily(
            "headrace_config_errors",
            "Problems of configuration files that changed while running.",
            value=len(self._config_errors),
        )
        yield GaugeMetricFamily("headrace_loop_delay_seconds", "Last delay of the event loop.", value=self._delay.last)
        yield GaugeMetricFamily(
            "headrace_loop_delay_max_seconds", "Largest delay of the event loop in a minute.", value=self._delay.largest
        )
        yield from self._states()
        for name, attribute, text in _COUNTERS:
            counter = CounterMetricFamily(f"headrace_{name}", text, labels=("destination",))
            for destination, status in self._statuses.items():
                counter.add_metric((destination,), attrgetter(attribute)(status))
            yield counter
        for name, attribute, text in _GAUGES:
            gauge = GaugeMetricFamily(f"headrace_{name}", text, labels=("destination",))
            for destination, status in self._statuses.items():
                gauge.add_metric((destination,), attrgetter(attribute)(status))
            yield gauge
        yield from self._locks()
        yield from self._zookeeper()
        yield from self._ages()
        yield from self._positions()
        yield from self._headroom()
        yield self._round_trips()
        yield self._gaps()

    def _states(self) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "headrace_state", "1 for the state that the destination is in.", labels=("destination", "state")
        )
        healthy = GaugeMetricFamily("headrace_healthy", "1 in a healthy state.", labels=("destination",))
        for destination, status in self._statuses.items():
            healthy.add_metric((destination,), int(status.state.healthy))
            for one in State:
                state.add_metric((destination, one.value), int(one is status.state))
        yield state
        yield healthy

    def _locks(self) -> Iterator[Metric]:
        active = GaugeMetricFamily(
            "headrace_active", "1 while this daemon holds the destination's lock.", labels=("destination",)
        )
        lease = GaugeMetricFamily(
            "headrace_lease_remaining_seconds",
            "Time until the lock has to be proved again; none for a file lock.",
            labels=("destination",),
        )
        for destination, status in self._statuses.items():
            active.add_metric((destination,), int(status.role == "ACTIVE" and not (status.lease and status.lease.lost)))
            if status.lease is not None and status.lease.limited:
                lease.add_metric((destination,), status.lease.remaining)
        yield active
        yield lease

    def _zookeeper(self) -> Iterator[Metric]:
        sessions = CounterMetricFamily(
            "headrace_zookeeper_sessions", "Sessions with ZooKeeper: the first, and one for each that was lost."
        )
        suspensions = CounterMetricFamily(
            "headrace_zookeeper_suspensions", "Connections to ZooKeeper that broke, within a session or with it."
        )
        attempts = CounterMetricFamily("headrace_lock_attempts", "Attempts to take a lock that looked free.")
        fenced = CounterMetricFamily(
            "headrace_fenced_writes",
            "Writes of the position that ZooKeeper refused, because another daemon has the destination.",
            labels=("destination",),
        )
        counts = self._counts
        if counts is not None:
            sessions.add_metric((), counts.sessions)
            suspensions.add_metric((), counts.suspensions)
            attempts.add_metric((), counts.attempts)
            for destination in self._statuses:
                fenced.add_metric((destination,), counts.fenced_writes.get(destination, 0))
        yield sessions
        yield suspensions
        yield attempts
        yield fenced

    def _ages(self) -> Iterator[Metric]:
        now = time.monotonic()
        for name, attribute, text in _AGES:
            gauge = GaugeMetricFamily(f"headrace_{name}", text, labels=("destination",))
            for destination, status in self._statuses.items():
                seconds = age(attrgetter(attribute)(status), now)
                if seconds is None and attribute == "oldest_unconfirmed_at":
                    seconds = 0.0
                if seconds is not None:  # what never happened has no age: a number would be a lie
                    gauge.add_metric((destination,), seconds)
            yield gauge

    def _positions(self) -> Iterator[Metric]:
        offset = GaugeMetricFamily(
            "headrace_position_offset", "Offset of the confirmed position in its file.", labels=("destination",)
        )
        number = GaugeMetricFamily(
            "headrace_position_file_number", "Number of the confirmed position's binlog.", labels=("destination",)
        )
        commit = GaugeMetricFamily(
            "headrace_position_commit_timestamp_seconds",
            "Commit time of the last confirmed transaction, since 1970.",
            labels=("destination",),
        )
        for destination, status in self._statuses.items():
            if status.position is None:
                continue
            offset.add_metric((destination,), status.position.offset)
            suffix = status.position.file.rpartition(".")[2]
            if suffix.isascii() and suffix.isdigit():
                number.add_metric((destination,), int(suffix))
            if status.position.commit_time_us:
                commit.add_metric((destination,), status.position.commit_time_us / 1e6)
        yield offset
        yield number
        yield commit

    def _headroom(self) -> Iterator[Metric]:
        seconds = GaugeMetricFamily(
            "headrace_binlog_headroom_seconds",
            "Time until the source purges the binlog that we need.",
            labels=("destination",),
        )
        size = GaugeMetricFamily(
            "headrace_binlog_headroom_bytes",
            "Binlog between the oldest that the source keeps and our position.",
            labels=("destination",),
        )
        for destination, status in self._statuses.items():
            if status.headroom_seconds is not None:
                seconds.add_metric((destination,), status.headroom_seconds)
            if status.headroom_bytes is not None:
                size.add_metric((destination,), status.headroom_bytes)
        yield seconds
        yield size

    def _round_trips(self) -> Metric:
        family = HistogramMetricFamily(
            "headrace_heartbeat_round_trip_seconds",
            "From the writing of a heartbeat to its return in the binlog.",
            labels=("destination",),
        )
        bounds = [*map(str, ROUND_TRIP_BUCKETS), "+Inf"]
        for destination, status in self._statuses.items():
            buckets = list(zip(bounds, accumulate(status.round_trips.counts), strict=True))
            family.add_metric((destination,), buckets, status.round_trips.total)
        return family

    def _gaps(self) -> Metric:
        counter = CounterMetricFamily(
            "headrace_position_moves",
            "Moves of the position by a policy, which gave something up.",
            labels=("destination", "reason"),
        )
        for destination, status in self._statuses.items():
            for reason, count in status.gaps.items():
                counter.add_metric((destination, reason), count)
        return counter


class Metrics:
    """The text of /metrics: headrace's own metrics and those of the process (memory, CPU, open files)."""

    def __init__(
        self,
        statuses: Mapping[str, DestinationStatus],
        node: str,
        delay: LoopDelay,
        config_errors: Sequence[str] = (),
        counts: ClusterCounts | None = None,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(statuses, node, delay, config_errors, counts))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
