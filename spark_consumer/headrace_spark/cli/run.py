"""`headrace-spark run`: the streaming query, until a signal."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import structlog

from headrace_common.systemd import Notifier
from headrace_documents.cli import CommandLine
from headrace_documents.elastic import bulk as elastic
from headrace_documents.errors import ConsumerError, UnreachableError
from headrace_documents.http import HttpServer
from headrace_spark.settings import Settings, reindexed
from headrace_spark.source import kafka
from headrace_spark.status.metrics import SparkMetrics
from headrace_spark.status.outages import ELASTICSEARCH, KAFKA, Outages
from headrace_spark.status.problems import elasticsearch_cause
from headrace_spark.status.status import Status

log = structlog.get_logger("headrace_spark")

START_EVERY = 3.0
"""Seconds between two checks for an unavailable server at the start."""


def add(line: CommandLine) -> None:
    command = line.add("run", "run the streaming query until SIGTERM", _run)
    command.add_argument(
        "--available-now",
        "--once",
        action="store_true",
        dest="available_now",
        help="read what is there now, write it and end",
    )


def _run(settings: Settings, options: argparse.Namespace) -> int:
    # Its messages about connections that end with the JVM, with a stack trace, are not of interest.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    run(settings, available_now=options.available_now)
    return 0


def run(settings: Settings, *, available_now: bool) -> None:
    """Runs until SIGTERM or SIGINT, or until all is read. Raises ConsumerError."""
    from headrace_spark.query.watching import Monitor
    from headrace_spark.session.session import check_java

    stop = threading.Event()
    outages = Outages()
    status = Status(outages)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        log.info("signal", name=signal.Signals(number).name)
        status.stopping()
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    java = check_java()
    address = settings.http.address
    server = HttpServer(address, status, SparkMetrics(status)) if address is not None else None
    notifier = Notifier.from_env(os.environ)
    monitor = Monitor(status, notifier)
    monitor.start()
    log.info("starting", java=java, topics=settings.kafka.topics, checkpoint=settings.spark.checkpoint)
    patience = settings.spark.patience if available_now else None
    try:
        _wait(KAFKA, lambda: kafka.check_reachable(settings.kafka), outages, stop, patience)
        _wait(ELASTICSEARCH, lambda: _check_elasticsearch(settings), outages, stop, patience)
        if not stop.is_set():
            _with_spark(settings, status, stop, available_now=available_now)
    except ConsumerError:
        if not stop.is_set():
            raise
    finally:
        notifier.stopping()
        monitor.close()
        if server is not None:
            server.close()
    log.info("stopped")


def _check_elasticsearch(settings: Settings) -> None:
    try:
        elastic.check(settings.elasticsearch, settings.index)
    except UnreachableError as error:
        raise UnreachableError(elasticsearch_cause(str(error), settings.elasticsearch.hosts)) from None


def _wait(
    system: str, probe: Callable[[], None], outages: Outages, stop: threading.Event, patience: float | None
) -> None:
    """Waits until `probe` raises no UnreachableError any more. Raises it itself when `patience` is over."""
    began = time.monotonic()
    while not stop.is_set():
        try:
            probe()
        except UnreachableError as error:
            lasted = time.monotonic() - began
            if patience is not None and lasted >= patience:
                raise
            outages.waiting(system, "start", str(error), waits="the start", seconds=lasted)
            stop.wait(START_EVERY)
        else:
            break
    outages.over(system, "start")


def _with_spark(settings: Settings, status: Status, stop: threading.Event, *, available_now: bool) -> None:
    from headrace_spark.checkpoint import Checkpoint
    from headrace_spark.query.executors import Executors
    from headrace_spark.query.pace import Pace
    from headrace_spark.query.query import Runner
    from headrace_spark.query.watching import KafkaWatch, Listener
    from headrace_spark.session.ending import Ending
    from headrace_spark.session.session import open_session
    from headrace_spark.source.connection import PACKAGE
    from headrace_spark.source.kafka_client import KafkaClient, prepare_topics
    from headrace_spark.status.task_reports import receiver

    outages = status.outages
    handler = signal.getsignal(signal.SIGINT)
    more = [PACKAGE] if reindexed(settings) else []
    spark, process = open_session(settings.spark, receiver(outages, status.sign), more)
    # Spark has put its own handler on SIGINT, which only cancels jobs.
    signal.signal(signal.SIGINT, handler)
    ending = Ending(spark, process, stop, outages, settings.spark.drain_timeout)
    pace = Pace(settings.spark.max_offsets_per_trigger, settings.spark.max_bytes_per_trigger)
    jvm: Any = spark.sparkContext._jvm
    client = KafkaClient(jvm, settings.kafka)
    watch = KafkaWatch(settings.kafka, KafkaClient(jvm, settings.kafka), status, pace)
    executors: Executors | None = None
    try:
        executors = Executors(spark, status, settings.spark.patience if available_now else None)
        spark.streams.addListener(Listener(status))
        patience = 0.0 if available_now else None
        _wait(KAFKA, lambda: prepare_topics(client, settings.kafka, stop), outages, stop, patience)
        watch.start()
        log.info("running")
        checkpoint = Checkpoint(spark, settings.spark.checkpoint_location())
        Runner(settings, spark, stop, status, watch, pace, checkpoint, client, executors.reports).run(available_now)
    finally:
        watch.close()
        if executors is not None:
            executors.close()
        ending.end()
