"""What a failed query means: who has to do something, and how soon it is tried again."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace_spark.errors import RefusedError
from headrace_spark.kafka.kafka import java_reason
from headrace_spark.outages.causes import elasticsearch_cause, kafka_cause, python_error, query_reason
from headrace_spark.outages.outages import ELASTICSEARCH, KAFKA, QUERY, SPARK
from headrace_spark.settings.settings import Settings

SLOW, QUICK = 60.0, 10.0
"""Seconds between two tries at most: where somebody has to do something first, and else."""
DATA_LOSS = (
    "Look at the topics' retention. Set fail_on_data_loss = false to go on without these messages, and compare the "
    "tables with `headrace verify`, or publish them again with `headrace resync`"
)
NO_EXECUTOR = (
    "the cluster gives no executor: are its workers there, and have they the cores and the memory that "
    "spark.executor.cores and spark.executor.memory ask for?"
)
_CANCELLED = "cancelled as part of cancellation of all jobs"
"""What becomes of a job that executors.py gives up."""
_LOSS = re.compile(r"KAFKA_DATA_LOSS[\w.]*\]?(.*)", re.DOTALL)
_FROM_KAFKA = re.compile(r"org\.apache\.kafka\.common\.errors|KafkaException|Kafka[A-Z]\w*Exception")
_CHECKPOINT = re.compile(
    r"OffsetSeq|CommitLog|HDFSMetadataLog|StreamMetadata|log version|Incomplete log file|CheckpointFileManager|"
    r"STREAMING_CHECKPOINT|metadata log|checkpoint", re.IGNORECASE
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """`system` is the one that is away. `refused`: trying again is of no use before somebody has done something."""

    system: str
    cause: str
    remedy: str = ""
    pause: float = QUICK
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.cause}. {self.remedy}" if self.remedy else self.cause


def problem_of(error: Exception, settings: Settings) -> Problem:
    """Reads an error of the query, of Spark or of ours."""
    if isinstance(error, RefusedError):
        return Problem(QUERY, error.reason, error.remedy, SLOW, refused=True)
    text = str(error)
    name, said = python_error(text)
    if name == "BulkError":
        return Problem(ELASTICSEARCH, elasticsearch_cause(said, settings.elasticsearch.hosts))
    if name == "UnfitTable":
        return Problem(QUERY, said, "Correct [[index]], or alter the table", SLOW, refused=True)
    if name == "IndexRefused":
        return Problem(QUERY, said, "Correct it, and start the consumer again", SLOW, refused=True)
    if _CANCELLED in text:
        return Problem(SPARK, NO_EXECUTOR)
    if found := _LOSS.search(text):
        detail = re.sub(r"\s+", " ", found[1].partition("Reason:")[2] or found[1]).strip()[:300]
        return Problem(QUERY, f"Kafka has deleted messages that were never read: {detail}", DATA_LOSS, SLOW, True)
    if _FROM_KAFKA.search(text):
        return Problem(KAFKA, kafka_cause(settings.kafka.bootstrap_servers, java_reason(error)))
    if _CHECKPOINT.search(java_reason(error)):
        where = settings.spark.checkpoint
        remedy = "Move it away if it is damaged or of another query: all messages are read again, which does no harm"
        return Problem(QUERY, f"the checkpoint {where} can't be used: {query_reason(text)}", remedy, SLOW, True)
    return Problem(QUERY, query_reason(text), "", SLOW)
