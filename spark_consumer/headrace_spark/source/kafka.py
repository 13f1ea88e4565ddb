"""Kafka at the start: is it there, are the topics there, is there a topic for dead letters."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import structlog
from pyspark.sql import SparkSession

from headrace_documents.errors import UnreachableError
from headrace_spark.settings import KafkaSettings

log = structlog.get_logger(__name__)

# A message that fitted its own topic must fit here too, with our headers added.
DEAD_LETTER_MAX_BYTES = 64 * 1024 * 1024


def client_options(settings: KafkaSettings) -> dict[str, str]:
    """Options for Spark's Kafka source and sink."""
    return {"kafka.bootstrap.servers": ",".join(settings.bootstrap_servers)} | {
        f"kafka.{name}": value for name, value in settings.options.items()
    }


def check_reachable(settings: KafkaSettings) -> None:
    """Connects to the brokers, any one will do; raises UnreachableError. Quick, so it comes before Spark starts."""
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


def client_properties(settings: KafkaSettings, spark: SparkSession) -> Any:
    """Java's properties for a client; every answer has the limit `connect_timeout`."""
    jvm: Any = spark.sparkContext._jvm
    properties = jvm.java.util.Properties()
    timeout = str(int(settings.connect_timeout * 1000))
    for name, value in client_options(settings).items():
        properties.setProperty(name.removeprefix("kafka."), value)
    properties.setProperty("request.timeout.ms", timeout)
    properties.setProperty("default.api.timeout.ms", timeout)
    return properties


def admin_client(settings: KafkaSettings, spark: SparkSession) -> Any:
    """An AdminClient of the JVM, to be closed. Raises what Java raises."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.kafka.clients.admin.AdminClient.create(client_properties(settings, spark))


def prepare_topics(settings: KafkaSettings, spark: SparkSession, stop: threading.Event) -> None:
    """Waits until the topics are there and creates the one for dead letters.

    It uses the Kafka client inside Spark's JVM, so that no second client library is needed. Raises UnreachableError
    when Kafka does not answer or topics are still missing after `topic_timeout`.
    """
    jvm: Any = spark.sparkContext._jvm
    try:
        admin = admin_client(settings, spark)
    except Exception as error:
        raise UnreachableError(f"the Kafka client does not start: {java_reason(error)}; see [kafka]") from None
    try:
        _wait(settings, admin, jvm, stop)
    except UnreachableError:
        raise
    except Exception as error:
        raise UnreachableError(
            f"Kafka at {', '.join(settings.bootstrap_servers)} does not answer: {java_reason(error)}"
        ) from None
    finally:
        admin.close(jvm.java.time.Duration.ofSeconds(5))


def _wait(settings: KafkaSettings, admin: Any, jvm: Any, stop: threading.Event) -> None:
    deadline = time.monotonic() + settings.topic_timeout
    told = False
    while not stop.is_set():
        names = set(
            admin.listTopics().names().get(int(settings.connect_timeout) + 5, jvm.java.util.concurrent.TimeUnit.SECONDS)
        )
        if settings.dead_letter_topic not in names:
            _create(settings.dead_letter_topic, admin, jvm)
        missing = sorted(set(settings.topics) - names)
        if not missing:
            return
        if time.monotonic() >= deadline:
            raise UnreachableError(
                f"Kafka has no topic {', '.join(missing)} after {settings.topic_timeout:g} s: "
                "create it, or let the daemon publish to it first, or correct `topics` in [kafka]"
            )
        if not told:
            log.info("waiting for topics", missing=missing, seconds=settings.topic_timeout)
            told = True
        stop.wait(1.0)


def _create(name: str, admin: Any, jvm: Any) -> None:
    optional = jvm.java.util.Optional
    topic = jvm.org.apache.kafka.clients.admin.NewTopic(name, optional.of(1), optional.empty())
    configs = jvm.java.util.HashMap()
    configs.put("max.message.bytes", str(DEAD_LETTER_MAX_BYTES))
    topics = jvm.java.util.ArrayList()
    topics.add(topic.configs(configs))
    try:
        admin.createTopics(topics).all().get(30, jvm.java.util.concurrent.TimeUnit.SECONDS)
        log.info("topic for dead letters created", topic=name)
    except Exception as error:
        if "TopicExistsException" not in str(error):
            raise UnreachableError(f"can't create the topic for dead letters {name}: {java_reason(error)}") from None


def java_reason(error: BaseException) -> str:
    """The first line of what Java has to say, without Python's wrapping and without the stack."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0]


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
