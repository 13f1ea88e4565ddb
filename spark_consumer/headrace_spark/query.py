"""The streaming query: batches from Kafka, written by tasks, dead letters back to Kafka, restarted when it fails."""

from __future__ import annotations

import threading
import time

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace_spark.batch import COLUMNS, Batch
from headrace_spark.errors import QueryError
from headrace_spark.kafka import client_options, java_reason
from headrace_spark.settings import Settings

log = structlog.get_logger("headrace_spark.query")

POLL = 0.25  # seconds between two looks at the query and at the request to stop
MAX_BACKOFF = 60.0


class _Stopping(Exception):
    """No error: it ends a batch before anything of it is done."""


class Runner:
    """Runs the query until it is stopped or, with `available_now`, until everything there has been read."""

    def __init__(self, settings: Settings, spark: SparkSession, stop: threading.Event) -> None:
        self._settings = settings
        self._spark = spark
        self._stop = stop
        self._batches = 0  # finished since the query was last started
        self._total: dict[str, int] = {}

    def run(self, available_now: bool = False) -> None:
        """Returns after `stop` was set (a batch that is running is finished first) or when all is read.

        A query that fails begins again from its checkpoint, after a pause that grows; QueryError after `restarts`
        failures in a row without a finished batch.
        """
        failures = 0
        while not self._stop.is_set():
            self._batches = 0
            try:
                query = self._start(available_now)
            except Exception as error:
                # Nothing has been asked of Kafka yet: this is the config or the checkpoint, and waiting won't mend it.
                raise QueryError(f"the query can't be started: {java_reason(error)}") from error
            try:
                self._watch(query)
                return
            except Exception as error:
                if self._stop.is_set():
                    return
                reason = java_reason(error)
            if self._jvm_is_gone():
                raise QueryError("Spark's JVM has ended. Start the consumer again: it goes on from its checkpoint.")
            failures = 1 if self._batches else failures + 1
            if failures > self._settings.spark.restarts:
                raise QueryError(
                    f"the query failed {failures} times in a row, last with: {reason}. Nothing is lost: mend the cause "
                    f"and start again, it goes on from the checkpoint {self._settings.spark.checkpoint}."
                )
            wait = min(MAX_BACKOFF, 2.0 ** (failures - 1))
            log.error("query failed and is started again", failures=failures, seconds=wait, reason=reason)
            self._stop.wait(wait)

    def _start(self, available_now: bool) -> StreamingQuery:
        kafka, spark = self._settings.kafka, self._settings.spark
        options = client_options(kafka) | {
            "subscribe": ",".join(kafka.topics),
            "startingOffsets": kafka.starting_offsets,
            "failOnDataLoss": str(kafka.fail_on_data_loss).lower(),
            "maxOffsetsPerTrigger": str(spark.max_offsets_per_trigger),
            "includeHeaders": "true",
            # The daemon may publish in transactions; what was rolled back never happened.
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

    def _watch(self, query: StreamingQuery) -> None:
        """Waits for the query's end. Once we are to stop, for the end of the batch that is running."""
        deadline = None
        while not query.awaitTermination(POLL):  # type: ignore[arg-type]  # takes float seconds, is annotated as int
            if not self._stop.is_set():
                continue
            if deadline is None:
                log.info("stopping", batches=self._batches)
                deadline = time.monotonic() + self._settings.spark.drain_timeout
            # Between two triggers nothing is under way. A batch that begins from now on ends itself (see _batch).
            if not query.status["isTriggerActive"] or time.monotonic() >= deadline:
                query.stop()

    def _batch(self, frame: DataFrame, batch_id: int) -> None:
        if self._stop.is_set():
            # The batch before this one is finished and noted; this one is left for the next start. What Spark would
            # say about the exception is of no use to anybody.
            self._spark.sparkContext.setLogLevel("OFF")
            raise _Stopping
        started = time.monotonic()
        batch = Batch(self._settings, frame, batch_id)
        batch.write(self._save)
        self._batches += 1
        log.info("batch done", batch=batch_id, seconds=round(time.monotonic() - started, 3), **batch.counts)

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
