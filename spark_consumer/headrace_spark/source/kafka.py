"""Kafka according to the settings: the clients' options, whether a broker answers, and errors of Java and Spark."""

from __future__ import annotations

import json
import socket
from typing import Any

from headrace_documents.errors import UnreachableError
from headrace_spark.settings import KafkaSettings

# A message that fitted its own topic must fit here too, with our headers.
DEAD_LETTER_MAX_BYTES = 64 * 1024 * 1024


def client_options(settings: KafkaSettings) -> dict[str, str]:
    """Returns options for Spark's Kafka source and sink."""
    return {"kafka.bootstrap.servers": ",".join(settings.bootstrap_servers)} | {
        f"kafka.{name}": value for name, value in settings.options.items()
    }


def check_reachable(settings: KafkaSettings) -> None:
    """Connects to any of the brokers; raises UnreachableError. Fast, so it comes before Spark starts."""
    failures = []
    for host, port in settings.servers():
        try:
            socket.create_connection((host, port), timeout=settings.connect_timeout).close()
        except OSError as error:
            failures.append(f"{host}:{port} ({error})")
        else:
            return
    raise UnreachableError(
        f"Kafka can't be reached: {', '.join(failures)}. Is it running, and is `bootstrap_servers` in [kafka] right?"
    )


def java_reason(error: BaseException) -> str:
    """Returns the first line of Java's error, without Python's wrapping and without the stack."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]


def offsets_of(text: Any) -> dict[tuple[str, int], int]:
    """Returns offsets as Spark writes them, {"topic": {"0": 17}}; none for other values."""
    try:
        topics = json.loads(text) if isinstance(text, str) else text
        return {
            (topic, int(partition)): int(offset)
            for topic, partitions in topics.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}
