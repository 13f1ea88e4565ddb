"""The two threads of the query: one checks Kafka, the other writes log lines and notifies systemd's watchdog."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import structlog
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace_common.systemd import Notifier
from headrace_spark.errors import RefusedError
from headrace_spark.query.pace import Pace
from headrace_spark.settings import KafkaSettings
from headrace_spark.source.kafka import java_reason, offsets_of
from headrace_spark.source.kafka_client import KafkaClient, Partition, Seen
from headrace_spark.status.outages import KAFKA, QUERY
from headrace_spark.status.problems import kafka_cause
from headrace_spark.status.status import State, Status


class Listener(StreamingQueryListener):
    """Updates the status. Spark calls it in a separate thread."""

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


log = structlog.get_logger(__name__)

POLL = 5.0
OLDEST_OF = 8
"""Partitions whose oldest message is read."""
TICK = 1.0
FED_FOR = 60.0
"""Seconds without a sign of life during which the watchdog is still notified."""
PROGRESS_EVERY, SUMMARY_EVERY = 10.0, 60.0


class KafkaWatch:
    """Checks Kafka every few seconds while the process runs."""

    def __init__(self, settings: KafkaSettings, client: KafkaClient, status: Status, pace: Pace) -> None:
        self._settings, self._client, self._status, self._pace = settings, client, status, pace
        self._ids: dict[str, str] = {}
        self._reported: dict[Partition, int] = {}
        self._end = threading.Event()
        self.refused: RefusedError | None = None
        """Set if a topic is no longer the one that the query began with."""
        self._thread = threading.Thread(target=self._run, name="check Kafka", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; does not wait for an answer of Kafka."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(POLL):
            began = time.monotonic()
            try:
                self.see(self._client.topics())
                self._oldest()
            except Exception as error:
                if self._end.is_set():
                    return
                cause = kafka_cause(self._settings.bootstrap_servers, java_reason(error))
                self._status.outages.waiting(
                    KAFKA, "watch", cause, waits="all messages that are not read yet", seconds=time.monotonic() - began
                )
            else:
                self._status.outages.over(KAFKA, "watch")

    def see(self, seen: Seen) -> None:
        """Takes what was seen."""
        self._status.ends(seen.ends)
        for topic, identity in seen.ids.items():
            if self._ids.setdefault(topic, identity) != identity:
                self.refused = RefusedError(f"topic {topic} was deleted and made again while it was read", "")
                self._ids[topic] = identity
        done = self._status.done
        for partition, begin in seen.begins.items():
            missing = begin - done.get(partition, begin)
            if missing > 0 and self._reported.get(partition, 0) < begin:
                self._reported[partition] = begin
                topic, number = partition
                log.error(
                    "Kafka has deleted messages that may not be read yet: its retention is too short",
                    topic=topic, partition=number, first_offset=begin, read_up_to=done[partition],
                )  # fmt: skip

    def _oldest(self) -> None:
        lags, done = self._status.lags, self._status.done
        waiting = sorted((key for key, lag in lags.items() if lag), key=lambda key: -lags[key])[:OLDEST_OF]
        times: list[int] = []
        for key in waiting:
            committed, messages, size = self._client.first(key, done[key])
            self._pace.seen(min(messages, 20), size * min(messages, 20) // max(messages, 1))
            if committed:
                times.append(committed)
        self._status.oldest(min(times, default=0))


class Monitor:
    """Ticks once a second."""

    def __init__(self, status: Status, notifier: Notifier) -> None:
        self._status, self._notifier = status, notifier
        self._end = threading.Event()
        self._ready = False
        now = time.monotonic()
        self._progress_at, self._summary_at = now, now
        self._before: Mapping[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, and writes the due lines."""
        self._end.set()
        self._thread.join(2 * TICK)
        self._status.outages.tick()

    def _run(self) -> None:
        while not self._end.wait(TICK):
            try:
                self.tick(time.monotonic())
            except Exception as error:
                log.error("the monitor has a fault; please report it", reason=repr(error))

    def tick(self, now: float) -> None:
        """Does what is due; `now` is on the monotonic clock."""
        status = self._status
        status.outages.tick()
        state = status.state
        if status.silent < FED_FOR:
            self._notifier.watchdog()
        causes = "; ".join(one.cause for one in status.outages.current())
        lag = status.lag
        line = f"{state.value}: {causes}" if causes else state.value
        self._notifier.status(line if lag is None else f"{line}, {lag} messages wait")
        if status.query and not self._ready:
            self._ready = True
            self._notifier.ready()
        if state is State.CATCHING_UP and now - self._progress_at >= PROGRESS_EVERY:
            self._progress_at = now
            rate, _ = status.rates()
            eta = status.eta_seconds
            done = status.total.numbers["messages"]
            log.info("catching up", done=done, left=lag, messages_per_second=round(rate),
                     seconds_left=None if eta is None else round(eta))  # fmt: skip
        if now - self._summary_at >= SUMMARY_EVERY:
            self._summary_at = now
            self._summary(state)

    def _summary(self, state: State) -> None:
        """Logs what was done since the last time; nothing if nothing was."""
        after = dict(self._status.total.numbers) | {
            "held": self._status.total.held.total(),
            "batches": self._status.batches,
        }
        new = {name: count - self._before.get(name, 0) for name, count in after.items()}
        self._before = after
        if new["batches"]:
            fields = {name: count for name, count in new.items() if count}
            log.info("summary", state=state.value, left=self._status.lag, **fields)
