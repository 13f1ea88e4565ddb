"""The command `headrace-spark`."""

from __future__ import annotations

import argparse
import sys

import structlog

from headrace_documents.errors import ConsumerError
from headrace_documents.extras import exit_without

try:
    from headrace_documents import logs
    from headrace_spark.cli import check, dead_letters, init, rebuild, run, status, verify
except ModuleNotFoundError as missing:
    exit_without(missing, "headrace-spark", "spark")

log = structlog.get_logger("headrace_spark")

_COMMANDS = (run, check, init, dead_letters, status, verify, rebuild)
"""Each has add(commands), which adds its parser and sets the default `run`: a function of the options that returns the
exit code."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Exit codes: 0 done, stopped or drained, 1 failed, 2 the config or the machine is not fit,
    130 after Ctrl-C."""
    options = make_parser().parse_args(arguments)
    logs.configure(options.log_format)
    try:
        return int(options.run(options))
    except ConsumerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # A fault of ours: the whole story goes into the log, as one event. An error's repr() may hold a password.
        log.critical("headrace-spark has a fault; please report it", reason=type(error).__name__, exc_info=True)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="headrace-spark", description="Takes headrace's messages from Kafka into Elasticsearch."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for module in _COMMANDS:
        module.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
