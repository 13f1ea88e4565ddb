"""The command `headrace-spark`: reads the config, checks what it needs, runs the query, answers signals."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import structlog

from headrace_documents.errors import ConsumerError
from headrace_documents.extras import exit_without

try:
    from headrace_documents import elastic, logs
    from headrace_spark import kafka
    from headrace_spark.settings import Settings, load_settings
except ModuleNotFoundError as missing:
    exit_without(missing, "headrace-spark", "spark")

log = structlog.get_logger("headrace_spark")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Exit codes: 0 stopped or drained, 1 failed, 2 the config or the machine is not fit."""
    options = _parser().parse_args(arguments)
    logs.configure(options.log_format)
    try:
        settings = load_settings(options.config)
        if options.command == "check":
            _check(settings)
            print(f"{options.config}: good; Java, Kafka and Elasticsearch are there")
        else:
            _run(settings, available_now=options.available_now)
    except ConsumerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception as error:
        # A fault of ours: the whole story goes into the log, as one event. An error's repr() may hold a password.
        log.critical("headrace-spark has a fault; please report it", reason=type(error).__name__, exc_info=True)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace-spark", description="Takes headrace's messages from Kafka into Elasticsearch."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the streaming query until SIGTERM")
    run.add_argument(
        "--available-now",
        "--once",
        action="store_true",
        dest="available_now",
        help="read what is there now, write it and end",
    )
    check = commands.add_parser("check", help="check the config, Java, Kafka and Elasticsearch, and end")
    for command in (run, check):
        command.add_argument("--config", type=Path, required=True, help="the TOML file, e.g. config/spark.toml")
        command.add_argument("--log-format", choices=["json", "console"], help="default: console at a terminal")
    return parser


def _check(settings: Settings) -> str:
    # Imported late: a wrong config is told at once, not after Spark's Python half has been loaded.
    from headrace_spark.session import check_java

    java = check_java()
    kafka.check_reachable(settings.kafka)
    elastic.check(settings.elasticsearch)
    return java


def _run(settings: Settings, *, available_now: bool) -> None:
    from headrace_spark.query import Runner
    from headrace_spark.session import open_session

    stop = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        log.info("signal", name=signal.Signals(number).name)
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    java = _check(settings)
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


if __name__ == "__main__":
    sys.exit(main())
