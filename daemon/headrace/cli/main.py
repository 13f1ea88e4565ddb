"""The `headrace` command: one module a command beside this one, and the exit statuses that all share."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.cli import check, cluster, decode, failed, position, route, run
from headrace.cli.wiring import ADAPTERS
from headrace.errors import ConfigError, HeadraceError
from headrace.settings.destination import Settings
from headrace.settings.load import Loader
from headrace.supervisor import logs

Command = Callable[[Settings], Coroutine[Any, Any, int]]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status: 0 well, 1 something failed, 2 the configuration or the command is wrong."""
    arguments = _parser().parse_args(argv)
    if "config" not in arguments:
        return _guarded(lambda: decode.run(arguments))
    try:
        settings = Loader(ADAPTERS, os.environ).load(arguments.config)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 2
    command: Command = functools.partial(_with, arguments) if "call" in arguments else arguments.command

    logging = contextlib.nullcontext() if command is run.command else logs.for_commands()

    def run_command() -> int:
        with logging, asyncio.Runner(loop_factory=_loop_factory(settings.daemon.event_loop)) as runner:
            return runner.run(command(settings))

    return _guarded(run_command)


def _with(arguments: argparse.Namespace, settings: Settings) -> Coroutine[Any, Any, int]:
    """A command that has arguments of its own."""
    made: Coroutine[Any, Any, int] = arguments.call(settings, arguments)
    return made


def _guarded(call: Callable[[], int]) -> int:
    try:
        status = call()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read has seen enough. Python would complain once more when it closes standard output.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace", description="Carries row changes out of MySQL.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    command = commands.add_parser("run", help=run.HELP, description=run.DESCRIPTION, allow_abbrev=False)
    _add_config(command)
    command.set_defaults(command=run.command)
    check.add_arguments(
        commands.add_parser("check", help=check.HELP, description=check.DESCRIPTION, allow_abbrev=False), _add_config
    )
    position.add_arguments(
        commands.add_parser("position", help=position.HELP, description=position.DESCRIPTION, allow_abbrev=False),
        _add_config,
    )
    route.add_arguments(
        commands.add_parser("route", help=route.HELP, description=route.DESCRIPTION, allow_abbrev=False), _add_config
    )
    failed.add_arguments(
        commands.add_parser("failed", help=failed.HELP, description=failed.DESCRIPTION, allow_abbrev=False), _add_config
    )
    for name, text in cluster.HELP.items():
        command = commands.add_parser(name, help=text, description=f"{text.capitalize()}.", allow_abbrev=False)
        cluster.add_arguments(name, command, _add_config)
    decode.add_arguments(
        commands.add_parser("decode", help=decode.HELP, description=decode.DESCRIPTION, allow_abbrev=False)
    )
    return parser


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        type=Path,
        default=Path("config/headrace.toml"),
        metavar="FILE",
        help="headrace.toml; the destinations are in a folder beside it (default: %(default)s)",
    )


def _loop_factory(wanted: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loops when wanted, or installed; None means Python's own."""
    if wanted == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        if wanted == "uvloop":
            raise HeadraceError(
                "[daemon] event_loop is uvloop, which is not installed", remedy="pip install 'headrace[uvloop]'"
            ) from None
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


if __name__ == "__main__":
    sys.exit(main())
