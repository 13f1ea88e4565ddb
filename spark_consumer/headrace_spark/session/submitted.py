"""The session under spark-submit: its JVM, master, jars and properties exist, and only what is missing is added."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace_spark.errors import SessionError, first_line
from headrace_spark.session.pyspark_internals import conf_of, launch_jvm
from headrace_spark.settings import SparkSettings

log = structlog.get_logger("headrace_spark.session.session")

_KAFKA_SOURCE = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def is_submitted() -> bool:
    """Returns whether spark-submit has started this process: then it has started the JVM too."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def submitted_jvm() -> Any:
    """Returns py4j's gateway to the JVM of spark-submit. It ends by itself when this process does."""
    return launch_jvm()


def open_submitted(
    settings: SparkSettings,
    properties: dict[str, str],
    package: str,
    check_conf: Callable[[Any, Mapping[str, str]], None],
) -> SparkSession:
    """Returns the session with spark-submit's settings; `properties`, and [spark.conf], apply where it was given none.
    `check_conf` checks [spark.conf]. Raises SessionError if the jars of the Kafka source, `package`, are missing, and
    ConfError."""
    gateway = submitted_jvm()
    check_conf(gateway.jvm, settings.conf)
    loader = gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        loader.loadClass(_KAFKA_SOURCE)
    except Exception:
        raise SessionError(
            f"spark-submit was not given Spark's Kafka source: add `--packages {package}`, or `--jars` with its files"
        ) from None
    conf = conf_of(gateway)
    for name, value in {**properties, **settings.conf}.items():
        conf.setIfMissing(name, value)
    log.info("the session of spark-submit is used", master=conf.get("spark.master"))
    try:
        SparkContext(conf=conf, gateway=gateway)
        return SparkSession.Builder().getOrCreate()
    except Exception as error:
        raise SessionError(f"Spark did not start: {first_line(error)}.") from error
