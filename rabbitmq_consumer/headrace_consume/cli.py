"""The command `headrace-consume`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from headrace_documents.cli import CommandLine, exit_without

try:
    from headrace_consume import check, dead_letters, status
    from headrace_consume.service import Service
    from headrace_consume.settings import Settings, load_settings
    from headrace_documents.http import add_status
except ModuleNotFoundError as missing:
    exit_without(missing, "headrace-consume", "consume")


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    return make_command_line().main(arguments)


def make_command_line() -> CommandLine:
    """Returns the command line with all commands."""
    text = "Takes headrace's messages from a queue of RabbitMQ into Elasticsearch."
    line = CommandLine("headrace-consume", text, "/etc/headrace/consume.toml", load_settings)
    line.add("run", "consume until SIGTERM", _run)
    check.add(line)
    dead_letters.add(line)
    add_status(line, status.rows)
    return line


def _run(settings: Settings, _: argparse.Namespace) -> int:
    asyncio.run(Service(settings).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
