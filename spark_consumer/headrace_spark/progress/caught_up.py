"""Whether the consumer has read what Kafka had at a moment."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from headrace_spark.kafka.look import KafkaLook
from headrace_spark.progress.checkpoint import Checkpoint
from headrace_spark.settings.settings import Settings

_POLL = 0.5


class ConsumerPosition:
    """The consumer's checkpoint, beside the ends of its topics."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        self._settings, self._spark = settings, spark

    def ends(self) -> dict[tuple[str, int], int]:
        """The ends of the topics' partitions now. Raises what Java raises."""
        look = KafkaLook(self._settings.kafka, self._spark)
        try:
            return dict(look.look().ends)
        finally:
            look.close()

    def is_past(self, ends: dict[tuple[str, int], int]) -> bool:
        """Whether all before these is done. Raises RefusedError."""
        checkpoint = Checkpoint(self._spark, self._settings.spark.checkpoint_location())
        done = checkpoint.done(self._settings.kafka.topics)
        return all(done.get(key, 0) >= end for key, end in ends.items())

    def catches_up(self, wait: float) -> bool:
        """Waits until what Kafka has now is done, for `wait` seconds at most."""
        ends, limit = self.ends(), time.monotonic() + wait
        while not self.is_past(ends):
            if time.monotonic() >= limit:
                return False
            time.sleep(_POLL)
        return True
