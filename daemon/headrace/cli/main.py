"""The `headrace` command: one module for each command in this package, and the exit statuses that all share."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace import __version__
from headrace.errors import ConfigError, HeadraceError, Refusal, named
from headrace_common.printable import printable_lines

if TYPE_CHECKING:
    import asyncio

COMMANDS = {
    "run": ("run", "run all destinations"),
    "init": ("init", "write a first configuration, after asking the source"),
    "check": ("check", "connect to everything and say what is missing"),
    "status": ("status", "show the destinations, once or live"),
    "position": ("position", "show and move the positions of destinations"),
    "route": ("route", "show where the changes of a table go, and by which rule"),
    "pause": ("operate", "stop a destination's stream until it is resumed"),
    "resume": ("operate", "resume a paused destination"),
    "restart": ("operate", "restart a destination's stream"),
    "resync": ("resync", "read and publish rows of tables again"),
    "snapshot": ("resync", "show, pause, resume or cancel the reading of tables"),
    "verify": ("verify", "compare tables with what consumers have"),
    "parked": ("parked", "show, resend or discard messages that the sink refused"),
    "cluster": ("cluster", "show which daemon runs which destination"),
    "move": ("cluster", "move a destination to another daemon"),
    "drain": ("cluster", "move all destinations away from a daemon, before maintenance"),
    "archive": ("archive", "list, verify, export, extend or prune the archive of binlogs"),
    "replay": ("replay", "publish archived changes again, into another topic or a file"),
    "decode": ("decode", "print binlog files, or a server's binlog, as JSON lines"),
    "schema": ("schema", "show the tables' schemas as they are known"),
    "config": ("config", "show the configuration, check it, or list its keys"),
    "import": ("import_from", "convert a configuration and cursor of Canal or Debezium"),
    "shadow": ("shadow", "compare another system's messages with those of a destination"),
    "adopt": ("adopt", "continue a destination where Canal or Debezium stopped"),
    "export": ("export_to", "write a position as a cursor of Canal or an offset of Debezium"),
    "completion": ("completion", "print a completion script for a shell"),
    "version": ("version", "show the versions of headrace and its components"),
}
"""Module and help of each command. A module is imported only for its command: help and --version need none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 0 success, 1 something failed, 2 the configuration or the command is
    wrong."""
    arguments = make_parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
    if "run" in arguments:
        return _guarded(lambda: int(arguments.run(arguments)))
    return _guarded(lambda: _run_configured(arguments), getattr(arguments, "name", ""))


def make_parser(argv: Sequence[str], *, every: bool = False) -> argparse.ArgumentParser:
    """Returns the parser of a command line. Only the given command has its arguments, or `every` one."""
    given = next((word for word in argv if not word.startswith("-")), "")
    parser = argparse.ArgumentParser(
        prog="headrace", description="Carries row changes out of MySQL.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(name, help=text, allow_abbrev=False)
        if every or name == given:
            importlib.import_module(f"headrace.cli.{module}").add_arguments(command)
    return parser


def _run_configured(arguments: argparse.Namespace) -> int:
    """Runs a command with a configuration. Raises HeadraceError."""
    import asyncio

    from headrace.cli.environment import environment
    from headrace.cli.wiring import ADAPTERS
    from headrace.settings.load import Loader
    from headrace_common import logs

    loader = Loader(ADAPTERS, environment(arguments.env_file))
    # A daemon runs although a file of a destination is wrong, and so commands that only ask it do not read them.
    settings = (loader.load_main if "asks_daemon" in arguments else loader.load)(arguments.config)
    logging = contextlib.nullcontext() if "own_log" in arguments else logs.for_commands()
    with logging, asyncio.Runner(loop_factory=loop_factory(settings.daemon.event_loop)) as runner:
        return int(runner.run(arguments.call(settings, arguments)))


def _guarded(call: Callable[[], int], destination: str = "") -> int:
    try:
        status = call()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        leave_stdout()
        return 1
    except ConfigError as error:
        print(*map(printable_lines, error.problems), f"see: {error.help}", sep="\n", file=sys.stderr)
        return 2
    except HeadraceError as error:
        print(
            f"headrace: {printable_lines(named(str(error), destination))}",
            f"see: {error.help}",
            sep="\n",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130


def leave_stdout() -> None:
    """Handles a closed standard output: the reader has seen enough. Python would otherwise print an error when it
    closes it."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def loop_factory(wanted: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns uvloop's factory of loops if requested, or installed; None means Python's own."""
    if wanted == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if wanted == "uvloop":
            raise Refusal(
                "[daemon] event_loop is uvloop, which is not installed", remedy="pip install 'headrace[uvloop]'"
            ) from None
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


if __name__ == "__main__":
    sys.exit(main())
