"""Shared by commands: the option --config, the store of a destination, its lock, and texts."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from headrace import times
from headrace.errors import ConfigError, Refusal
from headrace_common.printable import printable_lines

if TYPE_CHECKING:  # help needs none of it, and must be fast
    from headrace.cli.wiring import Wiring
    from headrace.lease import Term
    from headrace.ports.state import StateStore
    from headrace.settings.archive import ArchiveSettings
    from headrace.settings.destination import DestinationSettings, Settings

_PATIENCE = 1.5
"""Seconds that a command waits for a destination's lock."""
_POLL = 0.1


def add_config(parser: Any) -> None:
    """Adds the options of every command that needs a configuration, to a parser or a group of its options."""
    parser.add_argument(
        "--config",
        type=Path,
        default=Path("/etc/headrace/headrace.toml"),
        metavar="FILE",
        help="headrace.toml; the destinations are in a folder next to it (default: %(default)s)",
    )
    parser.add_argument(
        "--env-file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="lines NAME=value, for ${NAME} in the configuration; may be given again",
    )


Call = Callable[["Settings", argparse.Namespace], Coroutine[Any, Any, int]]


def add_command(
    commands: Any, name: str, text: str, call: Call, *, all_at_once: bool = False
) -> argparse.ArgumentParser:
    """Adds a subcommand; `commands` is the result of argparse's add_subparsers(). It takes the destination `name`, or
    with `all_at_once` the destinations `names`, by default all."""
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    add_config(command)
    if all_at_once:
        command.add_argument("names", nargs="*", metavar="DEST", help="destinations (default: all)")
    else:
        command.add_argument("name", metavar="DEST", help="the destination")
    command.set_defaults(call=call)
    return command


class CommandRefused(Refusal):
    """The command can't be executed in the present state; the text says why."""


def destination(settings: Settings, name: str) -> DestinationSettings:
    """Returns the destination of this name. Raises ConfigError."""
    found = settings.destinations.get(name)
    if found is None:
        raise ConfigError([f"there is no destination '{name}'; there are {', '.join(settings.destinations) or 'none'}"])
    return found


def archive_of(found: DestinationSettings) -> ArchiveSettings:
    """Returns the settings of a destination's archive. Raises CommandRefused if it has none."""
    if found.archive is None:
        raise CommandRefused(f"{found.name} has no archive", remedy="set [archive] path; see docs/archive.md")
    return found.archive


@asynccontextmanager
async def coordinated(settings: Settings) -> AsyncIterator[Wiring]:
    """Yields what the daemons share, for a command. Raises LockServiceError."""
    from headrace.cli.wiring import Wiring

    shared = Wiring(settings, command=True)
    try:
        await shared.open()
        yield shared
    finally:
        await shared.close()


async def open_store(shared: Wiring, destination: DestinationSettings) -> StateStore:
    """Returns the destination's store, opened; a command never creates it. Raises CommandRefused or StateStoreError."""
    store = shared.store(destination)
    if problems := await store.problems(destination.name, must_exist=True):
        raise CommandRefused("; ".join(problems))
    await store.open()
    return store


@asynccontextmanager
async def held(shared: Wiring, destination: DestinationSettings) -> AsyncIterator[Term]:
    """Holds the destination's lock while the context lasts. Raises CommandRefused while a daemon runs the
    destination."""
    name, lock, store = destination.name, shared.lock(destination), shared.store(destination)

    async def known_epoch() -> int:
        return (await store.load(name)).epoch

    try:
        async with asyncio.timeout(_PATIENCE):  # a waiting destination holds its lock for each short attempt
            while not await lock.try_acquire(known_epoch):  # noqa: ASYNC110  (not every lock has an event)
                await asyncio.sleep(_POLL)
    except TimeoutError:
        raise CommandRefused(
            f"{name} is run by {lock.holder or 'another daemon'}",
            remedy="stop that daemon first; a destination in POSITION_LOST, SOURCE_CHANGED or FAILED waits, and can be "
            "moved while the daemon runs",
        ) from None
    try:
        yield lock.term
    finally:
        await lock.release()


def time_text(micros: int) -> str:
    """Returns a time in microseconds since 1970 for people, in UTC; "-" for 0."""
    return times.time_text(micros) if micros else "-"


def operator() -> str:
    """Returns who executes the command."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def aligned(rows: Sequence[tuple[str, ...]], indent: str = "  ") -> str:
    """Returns rows of cells as a text with columns."""
    rows = [tuple(map(printable_lines, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"{indent}{row}".rstrip() for row in padded)


def print_json(value: Any) -> None:
    """Prints a value for programs."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def require_answer(yes: bool) -> None:
    """Raises CommandRefused if a confirmation is needed and nobody can give it."""
    if not yes and not sys.stdin.isatty():
        raise CommandRefused("nobody can be asked: the input is no terminal", remedy="give --yes to do it unasked")


async def confirmed(yes: bool) -> bool:
    """Asks whether to continue."""
    if yes:
        return True
    print("Go on? [y/N] ", end="", flush=True)
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), typed.set)  # input() would not notice Ctrl-C before the end of the line
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was changed")
    return False
