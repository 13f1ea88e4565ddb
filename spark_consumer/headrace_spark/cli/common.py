"""Shared by the commands that read tables."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_documents.errors import ApiError, BulkError, ConsumerError, MessageError, SettingsError, TransportError
from headrace_spark.settings import Settings, SourceSettings
from headrace_spark.status.problems import elasticsearch_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def required_source(settings: Settings, file: Path) -> SourceSettings:
    """Returns [source]. Raises SettingsError if it is missing."""
    if settings.source is None:
        raise SettingsError([f"{file}: this command reads tables: the section [source] is missing"])
    return settings.source


@contextlib.contextmanager
def spark_with_source(settings: Settings) -> Iterator[SparkSession]:
    """Yields Spark with the driver for tables; it ends with the block. Raises JavaError and SessionError."""
    from headrace_spark.session.ending import Ending
    from headrace_spark.session.session import check_java, open_session
    from headrace_spark.source.connection import PACKAGE
    from headrace_spark.status.outages import Outages
    from headrace_spark.status.task_reports import receiver

    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    check_java()
    outages = Outages()
    spark, process = open_session(settings.spark, receiver(outages, lambda: None), more=[PACKAGE])
    ending = Ending(spark, process, threading.Event(), outages, settings.spark.drain_timeout)
    try:
        yield spark
    finally:
        ending.end()


@contextlib.contextmanager
def reported(settings: Settings, then: str) -> Iterator[None]:
    """Reports any failure in a sentence; `then` is what to do next. Raises ConsumerError."""
    from headrace_spark.source.kafka_client import KafkaError
    from headrace_spark.status.problems import problem_of

    try:
        yield
    except KafkaError as error:
        raise ConsumerError(f"{problem_of(error, settings)}. {then}") from None
    except ConsumerError:
        raise
    except (ApiError, TransportError, BulkError) as error:
        cause = elasticsearch_cause(str(error), settings.elasticsearch.hosts)
        raise ConsumerError(f"{cause}. {then}") from None
    except MessageError as error:
        raise ConsumerError(str(error)) from None
    except Exception as error:  # errors of Spark, and of its tasks
        raise ConsumerError(f"{problem_of(error, settings)}. {then}") from None
