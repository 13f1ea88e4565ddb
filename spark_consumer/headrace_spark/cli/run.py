"""`headrace-spark run`: the streaming query, until a signal."""

from __future__ import annotations

import argparse
import signal
import threading
from types import FrameType

import structlog

from headrace_documents.errors import ConsumerError
from headrace_spark import kafka
from headrace_spark.cli.check import check
from headrace_spark.cli.common import Commands, add_command
from headrace_spark.settings import Settings, load_settings

log = structlog.get_logger("headrace_spark")


def add(commands: Commands) -> None:
    command = add_command(commands, "run", "run the streaming query until SIGTERM")
    command.add_argument(
        "--available-now",
        "--once",
        action="store_true",
        dest="available_now",
        help="read what is there now, write it and end",
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    run(load_settings(options.config), available_now=options.available_now)
    return 0


def run(settings: Settings, *, available_now: bool) -> None:
    """Until SIGTERM or SIGINT, or until all is read. Raises ConsumerError."""
    from headrace_spark.query import Runner
    from headrace_spark.session import open_session

    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        log.info("signal", name=signal.Signals(number).name)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    java = check(settings)
    log.info("starting", java=java, topics=settings.kafka.topics, checkpoint=settings.spark.checkpoint)
    spark = open_session(settings.spark)
    # Spark has put its own handler on SIGINT, which only cancels jobs.
    signal.signal(signal.SIGINT, on_signal)
    try:
        kafka.prepare_topics(settings.kafka, spark, stop)
        log.info("running")
        Runner(settings, spark, stop).run(available_now)
    except ConsumerError:
        if not stop.is_set():
            raise
    finally:
        try:
            spark.stop()
        except Exception as error:
            # Signalled as a group (Ctrl-C, systemd's control group) the JVM may have ended before us.
            log.debug("Spark was gone already", reason=str(error))
    log.info("stopped")
