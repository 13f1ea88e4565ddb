"""The streaming query: batches from Kafka, written by tasks, dead letters back to Kafka; restarted when it fails."""

from __future__ import annotations

import threading
import time

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.checkpoint import Checkpoint
from headrace_spark.errors import QueryError, RefusedError
from headrace_spark.query.pace import Pace
from headrace_spark.query.watching import KafkaWatch
from headrace_spark.rebuild.reindexing import Reindexing
from headrace_spark.settings import Settings
from headrace_spark.sink.dual_write import DualWriteWatch
from headrace_spark.sink.writer import Context
from headrace_spark.source.kafka import client_options, java_reason
from headrace_spark.source.kafka_client import KafkaClient, Seen
from headrace_spark.status.outages import ELASTICSEARCH, KAFKA, QUERY
from headrace_spark.status.problems import DATA_LOSS, problem_of
from headrace_spark.status.report_socket import Address
from headrace_spark.status.status import Offsets, Status
from headrace_spark.transform.batch import COLUMNS, Batch
from headrace_spark.transform.expressions import Expressions

log = structlog.get_logger(__name__)

POLL = 0.25  # seconds between two checks of the query and of the request to stop
IDLE_POLL = 1.0  # seconds between two checks for something to do
MAX_AWAY = 5.0  # seconds between two attempts while Kafka or Elasticsearch is unavailable
SAMPLES = 8  # partitions of which a few messages are read before the query begins


class _Stopping(Exception):
    """Not an error: ends a query before anything of the next batch is done, after the previous one was recorded."""


class Runner:
    """Runs the query until it is stopped or, with `available_now`, until all existing messages have been read."""

    def __init__(
        self, settings: Settings, spark: SparkSession, stop: threading.Event, status: Status, watch: KafkaWatch,
        pace: Pace, checkpoint: Checkpoint, client: KafkaClient, reports: Address | None = None,
    ) -> None:  # fmt: skip
        """Raises ExpressionError."""
        self._settings, self._spark, self._stop = settings, spark, stop
        self._status, self._watch_kafka, self._pace = status, watch, pace
        self._checkpoint, self._client, self._reports = checkpoint, client, reports
        self._expressions = Expressions(settings, spark)
        self._batches = 0  # finished since the query was last started
        self._begins_again = False  # it ended itself to get another limit
        self._patience: float | None = None
        self._dual_write_watch = DualWriteWatch(settings.elasticsearch)
        self._reindexing = Reindexing(settings, spark, status, self._save)
        self._last = -1
        """The number of the last batch."""

    def run(self, available_now: bool = False) -> None:
        """Runs until `stop` is set (a running batch is finished first) or all is read.

        A query that fails restarts from its checkpoint, after a growing pause. With `available_now` QueryError or
        RefusedError after `patience` without a finished batch; QueryError if Spark's JVM has ended."""
        self._patience = self._settings.spark.patience if available_now else None
        if not available_now:
            self._reindexing.start()
        try:
            self._run(available_now)
            if available_now and not self._stop.is_set():
                self._reindexing.finish()
        finally:
            self._reindexing.close()

    def _run(self, available_now: bool) -> None:
        tries, last_good = 0, time.monotonic()
        while not self._stop.is_set():
            self._batches, self._begins_again = 0, False
            try:
                self._prepare()
                if self._stop.is_set() or self._watch(self._start(available_now)):
                    return
                continue
            except Exception as error:
                if self._stop.is_set():
                    return
                if self._begins_again:
                    continue
                problem = problem_of(error, self._settings)
            finally:
                self._status.query_runs(False)
            if self._jvm_is_gone():
                raise QueryError("Spark's JVM has ended. Start the consumer again: it goes on from its checkpoint.")
            if self._batches:
                tries, last_good = 0, time.monotonic()
            tries += 1
            self._status.failed(problem.cause, problem.remedy)
            lasted = time.monotonic() - last_good
            if self._patience is not None and (problem.refused or lasted >= self._patience):
                raise QueryError(
                    f"{problem}. Nothing is lost: the next start goes on from the checkpoint "
                    f"{self._settings.spark.checkpoint}."
                )
            # While Kafka is unavailable, that is reported, whatever Spark's error is.
            away = any(one.system == KAFKA for one in self._status.outages.current())
            system = KAFKA if away else problem.system
            self._status.outages.waiting(
                system, "query", str(problem), waits="all messages that are not read yet", seconds=lasted
            )
            log.debug("query failed and is started again", tries=tries, reason=str(problem))
            self._stop.wait(min(MAX_AWAY if system != QUERY else problem.pause, 2.0 ** min(tries - 1, 10)))

    def _prepare(self) -> None:
        """Checks whether checkpoint and topics match. Raises RefusedError, and Java's errors if Kafka is
        unavailable."""
        if (refused := self._watch_kafka.refused) is not None:
            self._watch_kafka.refused = None
            log.error("the query is ended", reason=refused.reason)
        done = self._checkpoint.done(self._settings.kafka.topics)
        seen = self._client.topics()
        self._status.ends(seen.ends)
        self._checkpoint.check_topics(seen.ids)
        self._status.read_up_to(done)
        lost = {key: seen.begins[key] - offset for key, offset in done.items() if seen.begins.get(key, 0) > offset}
        if lost:
            reported = ", ".join(f"{topic} {number}: {count}" for (topic, number), count in sorted(lost.items())[:20])
            reason = f"Kafka has deleted messages that were never read (topic, partition, offsets: {reported})"
            if self._settings.kafka.fail_on_data_loss:
                raise RefusedError(reason, DATA_LOSS)
            self._status.lost_messages += sum(lost.values())
            log.error("the query goes on without messages", reason=reason)
        if self._settings.spark.max_bytes_per_trigger:
            self._sample(done, seen)

    def _sample(self, done: Offsets, seen: Seen) -> None:
        """Measures the mean size of a few waiting messages, so that the first batch is not too large either."""
        waiting = [key for key, end in seen.ends.items() if end > done.get(key, seen.begins.get(key, 0))]
        for key in waiting[:SAMPLES]:
            _, messages, size = self._client.first(key, done.get(key, seen.begins.get(key, 0)))
            self._pace.seen(messages, size)

    def _start(self, available_now: bool) -> StreamingQuery:
        kafka, spark = self._settings.kafka, self._settings.spark
        self._status.limit = self._pace.begin()
        options = client_options(kafka) | kafka.start_options()
        options |= {
            "subscribe": ",".join(kafka.topics),
            "failOnDataLoss": str(kafka.fail_on_data_loss).lower(),
            "maxOffsetsPerTrigger": str(self._pace.limit),
            "includeHeaders": "true",
            # The daemon may publish in transactions; messages of aborted ones are not read.
            "kafka.isolation.level": "read_committed",
        }
        if spark.min_partitions:
            options["minPartitions"] = str(spark.min_partitions)
        frame = self._spark.readStream.format("kafka").options(**options).load()
        writer = (
            frame.select(*COLUMNS)
            .writeStream.queryName(spark.app_name)
            .option("checkpointLocation", spark.checkpoint_location())
            .foreachBatch(self._batch)
        )
        if available_now:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=spark.trigger).start()

    def _watch(self, query: StreamingQuery) -> bool:
        """Waits for the query's end; returns false if it ended to restart. After the request to stop, waits for the end
        of the running batch, unless that waits for a server itself."""
        deadline = None
        checked = time.monotonic()
        while not query.awaitTermination(POLL):  # type: ignore[arg-type]  # takes float seconds, is annotated as int
            now = time.monotonic()
            if not self._stop.is_set():
                if self._watch_kafka.refused is not None:
                    self._end(query)
                    return False
                if now - checked >= IDLE_POLL:
                    checked = now
                    if not query.status["isTriggerActive"]:
                        self._status.sign()
                        self._dual_write_watch.idle(self._last)
                continue
            if deadline is None:
                log.info("stopping", batches=self._batches)
                deadline = now + self._settings.spark.drain_timeout
            # Between two triggers nothing is running. A batch that begins from now on ends itself (see _batch).
            if self._status.outages.current() or now >= deadline or not query.status["isTriggerActive"]:
                self._end(query)
                return True
        return True

    def _end(self, query: StreamingQuery) -> None:
        try:
            query.stop()
        except Exception as error:
            # It does not end in time: the process will, and its JVM with it.
            log.debug("the query does not end", reason=java_reason(error))

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        if self._stop.is_set():
            # The batch before this one is finished and recorded; this one is left for the next start.
            raise _Stopping
        if self._batches and self._pace.wrong:
            # Only between batches: an aborted one would write its dead letters a second time.
            self._begins_again = True
            raise _Stopping
        started = time.monotonic()
        with self._dual_write_watch.batch(batch_id) as dual_writes:
            watch = self._reindexing.watch(dual_writes)
            context = Context(batch_id, dual_writes, watch, self._patience, self._reports)
            batch = Batch(self._settings, frame, context, self._expressions)
            batch.write(self._save)
        self._reindexing.seen(batch.counts)
        self._batches, self._last = self._batches + 1, batch_id
        seconds, numbers = time.monotonic() - started, batch.counts.numbers
        self._status.batch_done(batch_id, seconds, batch.counts)
        self._status.outages.over(ELASTICSEARCH)
        self._pace.seen(numbers["messages"], numbers["bytes"])
        log.debug("batch done", batch=batch_id, seconds=round(seconds, 3), **numbers)

    def _save(self, letters: DataFrame) -> None:
        kafka = self._settings.kafka
        (
            letters.write.format("kafka")
            .options(**client_options(kafka))
            .option("topic", kafka.dead_letter_topic)
            .option("kafka.acks", "all")
            .option("kafka.max.block.ms", "30000")
            .option("kafka.max.request.size", str(64 * 1024 * 1024))
            .save()
        )

    def _jvm_is_gone(self) -> bool:
        try:
            return bool(self._spark.sparkContext._jsc.sc().isStopped())
        except Exception:
            return True
