"""The meaning of a failed query: who must do something, and how soon it is retried."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace_spark.errors import RefusedError
from headrace_spark.settings import Settings
from headrace_spark.source.kafka import java_reason
from headrace_spark.source.kafka_client import KafkaError
from headrace_spark.status.outages import ELASTICSEARCH, KAFKA, QUERY, SPARK

MAX_DOCS = 2_147_483_519
"""The maximum number of documents of a shard of Elasticsearch: Lucene's limit."""
_INDEX = re.compile(r"index \[([^\[\]]+)\]")
_SHARD = re.compile(r"shard \[+([^\[\]]+)\]")
_PYTHON = re.compile(r"^(?:headrace_\w+(?:\.\w+)*\.)(\w+): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^(?:Caused by: )?(?:[\w.]+\.)?(\w+(?:Exception|Error): .+)$", re.MULTILINE)
_BAD_LOGIN = re.compile(r"\b401\b|unable to authenticate|expired", re.IGNORECASE)


def elasticsearch_cause(said: str, hosts: Sequence[str]) -> str:
    """Returns why Elasticsearch accepts nothing, from the text of a BulkError or UnreachableError."""
    where = f"Elasticsearch at {', '.join(hosts)}"
    index = _INDEX.search(said)
    name = index[1] if index else "?"
    shard = _SHARD.search(said)
    if "cluster_block" in said:
        if "flood" in said or "read-only-allow-delete" in said:
            return f"index {name} is blocked: flood stage, free disk space"
        return f"index {name} is blocked: {_short(said)}"
    if "documents per shard" in said or "number of documents in the index cannot exceed" in said:
        return f"a shard of index {shard[1] if shard else name} is full ({MAX_DOCS:,} documents)"
    if "index_closed_exception" in said:
        return f"index {name} is closed: {_short(said)}"
    if _BAD_LOGIN.search(said):
        return f"{where}: credentials are refused or have expired"
    if "security_exception" in said or re.search(r"\b403\b", said):
        return f"{where}: a right is missing: {_short(said)}"
    for sign, text in (
        ("Connection refused", "connection refused"),
        ("timed out", "no answer in time"),
        ("no answer within", "no answer in time"),
        ("timeout", "no answer in time"),
        ("RemoteDisconnected", "connection closed"),
        ("Connection reset", "connection reset"),
        ("Name or service not known", "the host's name is not known"),
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not trusted"),
    ):
        if sign in said:
            return f"{where} does not answer: {text}"
    if re.search(r"\b429\b", said):
        return f"{where} is overloaded: {_short(said)}"
    return f"{where} takes nothing: {_short(said)}"


def kafka_cause(servers: Sequence[str], said: str = "") -> str:
    """Returns why Kafka gives nothing."""
    where = f"Kafka at {', '.join(servers)}"
    if "Authentication" in said or "SaslAuth" in said:
        return f"{where}: credentials are refused or have expired"
    if "AuthorizationException" in said:
        return f"{where}: a right is missing: {_short(said)}"
    if said and "Timeout" not in said and "timed out" not in said and "refused" not in said:
        return f"{where} does not answer: {_short(said)}"
    return f"{where} does not answer"


def python_error(text: str) -> tuple[str, str]:
    """Returns name and text of our error that ended a task, from Spark's text about it; two empty texts if there is
    none."""
    found = _PYTHON.findall(text)
    return found[-1] if found else ("", "")


def query_reason(text: str) -> str:
    """Returns the relevant sentence of Spark's text about a failed query."""
    name, said = python_error(text)
    if name:
        return said
    # Spark begins with its own wrappers; the cause comes last.
    causes = re.findall(
        r"^(?:Caused by: |=== Streaming Query ===)?(?:[\w.]+\.)?(\w+(?:Exception|Error): .+)$", text, re.M
    )
    return _short(causes[-1] if causes else text)


def _short(text: str) -> str:
    return (text.strip().splitlines() or [""])[0].strip()[:300]


SLOW, QUICK = 60.0, 10.0
"""Maximum seconds between two attempts: if somebody must do something first, and else."""
DATA_LOSS = (
    "Look at the topics' retention. Set fail_on_data_loss = false to go on without these messages, and compare the "
    "tables with `headrace verify`, or publish them again with `headrace resync`"
)
NO_EXECUTOR = (
    "the cluster gives no executor: are its workers there, and have they the cores and the memory that "
    "spark.executor.cores and spark.executor.memory ask for?"
)
_CANCELLED = "cancelled as part of cancellation of all jobs"
"""The error of a job that executors.py cancels."""
_LOSS = re.compile(r"KAFKA_DATA_LOSS[\w.]*\]?(.*)", re.DOTALL)
_FROM_KAFKA = re.compile(r"org\.apache\.kafka\.common\.errors|KafkaException|Kafka[A-Z]\w*Exception")
_CHECKPOINT = re.compile(
    r"OffsetSeq|CommitLog|HDFSMetadataLog|StreamMetadata|log version|Incomplete log file|CheckpointFileManager|"
    r"STREAMING_CHECKPOINT|metadata log|checkpoint", re.IGNORECASE
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. `system` is the unavailable one. `refused`: a retry is useless before somebody has done something."""

    system: str
    cause: str
    remedy: str = ""
    pause: float = QUICK
    refused: bool = False

    def __str__(self) -> str:
        return f"{self.cause}. {self.remedy}" if self.remedy else self.cause


def problem_of(error: Exception, settings: Settings) -> Problem:
    """Returns the problem for an error of the query, of Spark or of ours."""
    if isinstance(error, RefusedError):
        return Problem(QUERY, error.reason, error.remedy, SLOW, refused=True)
    text = str(error)
    if isinstance(error, KafkaError):
        return Problem(KAFKA, kafka_cause(settings.kafka.bootstrap_servers, text))
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
