"""The command `headrace-spark`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from headrace_documents.cli import CommandLine, exit_without

try:
    from headrace_spark.cli import check, dead_letters, init, rebuild, run, status, verify
except ModuleNotFoundError as missing:
    exit_without(missing, "headrace-spark", "spark")


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    return make_command_line().main(arguments)


def make_command_line() -> CommandLine:
    """Returns the command line with all commands, one module for each."""
    text = "Takes headrace's messages from Kafka into Elasticsearch."
    line = CommandLine("headrace-spark", text, "/etc/headrace/spark.toml", _load)
    for module in (run, check, init, dead_letters, status, verify, rebuild):
        module.add(line)
    return line


def _load(file: Path) -> Any:
    from headrace_spark.settings import load_settings

    return load_settings(file)


if __name__ == "__main__":
    sys.exit(main())
