"""The consumers' shared command line: the options of all commands, exit statuses, and findings."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import structlog

from headrace_common.finding import Finding, Level, ok, warning, wrong
from headrace_common.printable import printable, printable_json
from headrace_documents import logs
from headrace_documents.errors import ConsumerError

Commands = Any
"""What argparse's add_subparsers() returns."""


def exit_without(error: ModuleNotFoundError, command: str, extra: str) -> NoReturn:
    """Ends the process with one sentence and status 2 if a package is not installed; raises the error again if it is a
    bug of ours."""
    name = (error.name or "").partition(".")[0]
    if not name or name.startswith("headrace"):
        raise error
    print(f"{command} needs the Python package {name}: pip install 'headrace[{extra}]'", file=sys.stderr)
    raise SystemExit(2)


class CommandLine:
    """A program with commands. `load` reads its configuration file, by default `config`."""

    def __init__(self, program: str, description: str, config: str, load: Callable[[Path], Any]) -> None:
        self.program, self._config, self._load = program, config, load
        self.parser = argparse.ArgumentParser(prog=program, description=description, allow_abbrev=False)
        self._commands = self.parser.add_subparsers(metavar="COMMAND", required=True)

    def group(self, name: str, text: str) -> Commands:
        """Adds a command that has subcommands, for `add`."""
        return self._commands.add_parser(name, help=text, allow_abbrev=False).add_subparsers(
            metavar="COMMAND", required=True
        )

    def add(
        self, name: str, text: str, call: Callable[[Any, argparse.Namespace], int] | None, group: Commands = None
    ) -> argparse.ArgumentParser:
        """Adds a command. `call` receives the configuration and the options, and returns the exit status; None for a
        command without a configuration, whose default `run` receives only the options."""
        description = f"{text[0].upper()}{text[1:]}."
        commands = self._commands if group is None else group
        command: argparse.ArgumentParser = commands.add_parser(
            name, help=text, description=description, allow_abbrev=False
        )
        if call is not None:
            command.add_argument(
                "--config",
                type=Path,
                default=Path(self._config),
                metavar="FILE",
                help="the configuration (default: %(default)s)",
            )
            command.set_defaults(call=call)
        return command

    def main(self, arguments: list[str] | None = None) -> int:
        """Runs a command. Exit status: 0 done or stopped, 1 failed, 2 the configuration or the machine is unsuitable,
        130 after Ctrl-C."""
        options = self.parser.parse_args(arguments)
        logs.configure()
        try:
            status = self._run(options)
            sys.stdout.flush()
            return status
        except BrokenPipeError:  # the reader has seen enough
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except ConsumerError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            # A bug of ours: all of it is logged, as one event. An error's repr() may contain a password.
            log = structlog.get_logger(self.program.replace("-", "_"))
            log.critical(f"{self.program} has a fault; please report it", reason=type(error).__name__, exc_info=True)
            return 1

    def _run(self, options: argparse.Namespace) -> int:
        if "run" in options:
            return int(options.run(options))
        settings = self._load(options.config)
        logs.configure(settings.log.format, settings.log.level)
        return int(options.call(settings, options))


class Findings:
    """The findings of `check`, in order."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def ok(self, name: str, sentence: str) -> None:
        """Adds something that is right."""
        self.all.append(ok(name, sentence))

    def warn(self, name: str, sentence: str, remedy: str = "") -> None:
        """Adds something that works, and may do harm."""
        self.all.append(warning(name, sentence, remedy))

    def wrong(self, name: str, sentence: str, remedy: str = "") -> None:
        """Adds something that prevents a run."""
        self.all.append(wrong(name, sentence, remedy))

    def print(self, *, as_json: bool) -> int:
        """Prints them for people or programs, as `headrace check` does; returns the exit status."""
        counts = Counter(one.level for one in self.all)
        if as_json:
            summary = {str(level): counts[level] for level in Level}
            print(printable_json({"findings": [_plain(one) for one in self.all], "summary": summary}))
        else:
            for one in self.all:
                print(printable(f"{one.level:<7} {one.name}: {one.sentence}"))
                if one.remedy:
                    print(printable(f"{'':<7} -> {one.remedy}"))
            print("not all is well: see the lines with wrong" if counts[Level.WRONG] else "all is well")
        return 1 if counts[Level.WRONG] else 0


def _plain(one: Finding) -> dict[str, Any]:
    facts = asdict(one)
    del facts["sql"]  # no check of a consumer has any
    return facts
