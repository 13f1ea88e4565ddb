"""`headrace decode`: binlog files, an archive, or a server's binlog, as JSON lines of changes."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from headrace.cli.common import add_config, archive_of, coordinated, destination, open_store
from headrace.cli.decode_output import Lines, OfKey, Printed, Stats, UndoScript
from headrace.cli.environment import environment
from headrace.cli.main import leave_stdout
from headrace.cli.terminal import Work, progress
from headrace.cli.wiring import ADAPTERS
from headrace.errors import ConfigError, Refusal
from headrace.pipeline.projection import Projections
from headrace.ports.inspection import Captures, Window
from headrace.rules.patterns import compile_filter
from headrace.settings.destination import DestinationSettings
from headrace.settings.load import Loader, derive_server_id
from headrace.settings.values import StartAt, StartTime, parse_file_position, parse_start
from headrace_common import logs

_T = TypeVar("_T")
_DECODING = "decoding"
DESCRIPTION = (
    "Prints the changes in binlog files, in an archive, or in a server's binlog up to its present end, a JSON message "
    "a line. Only an archive needs a configuration. Exit status 0: all was decoded; 1: something was not, said on "
    "standard error; 2: the command is wrong."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="binlog files, in order")
    parser.add_argument(
        "--format",
        type=_format,
        choices=("canal", "debezium", "maxwell"),
        default="canal",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--table", default="", metavar="REGEX", help="only tables whose schema.table matches; several with commas"
    )
    parser.add_argument(
        "--from",
        dest="first",
        metavar="POSITION",
        help="only transactions that begin there or later: an offset (in the first file), file:offset, or a time with "
        "its zone such as 2026-01-31T12:00:00Z; with --host also earliest (default), latest or a GTID set",
    )
    parser.add_argument(
        "--to",
        dest="last",
        metavar="POSITION",
        help="only transactions that begin before: an offset (in the last file), file:offset, or a time",
    )
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="VALUE",
        help="only rows with this primary key; once for each of its columns; needs --table",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--stats", action="store_true", help="instead of lines: events and rows by table and kind")
    instead.add_argument("--undo", action="store_true", help="instead of lines: the SQL that undoes them, last first")
    parser.add_argument(
        "--skip-event",
        action="append",
        default=[],
        metavar="FILE:OFFSET",
        help="pass over the event there, which can't be decoded; may be given again",
    )
    parser.add_argument(
        "--schema", type=Path, metavar="FILE.sql", help="CREATE TABLE statements of the tables as they are before FILE"
    )
    parser.add_argument(
        "--positional",
        action="store_true",
        help="call columns whose names are not known @1, @2 ... as mysqlbinlog does",
    )
    archive = parser.add_argument_group("instead of files, an archive")
    archive.add_argument("--archive", metavar="DEST", help="that of this destination; its schema history names columns")
    add_config(archive)
    server = parser.add_argument_group("instead of files, a server")
    server.add_argument("--host", help="its host name or address")
    server.add_argument("--port", type=int, default=3306, help="default: %(default)s")
    server.add_argument("--user", help="an account with the grants that a destination needs")
    password = server.add_mutually_exclusive_group()
    password.add_argument("--password-env", metavar="NAME", help="the environment variable that holds its password")
    password.add_argument("--ask-password", action="store_true", help="ask for it on the terminal")
    server.add_argument("--follow", action="store_true", help="go on with what the server writes, until interrupted")
    parser.set_defaults(parser=parser, run=run)


def run(arguments: argparse.Namespace) -> int:
    """Decodes; returns the exit status. Raises HeadraceError."""
    try:
        window = _window(arguments)
        settings = _settings(arguments)
    except ValueError as error:
        arguments.parser.error(str(error))
    adapter, chosen = ADAPTERS.source_adapter(), Projections(settings).captures

    def captures(schema: str, table: str) -> bool:
        # A statement that names no table, such as DROP DATABASE, has an empty one: it may change what is to be undone.
        return chosen(schema, table) or (arguments.undo and not table)

    left = ""
    try:
        with (
            TemporaryDirectory(prefix="headrace-") as folder,
            progress(_DECODING, beside_output=True) as work,
            logs.for_commands(),  # standard output is for rows
        ):
            spool, whole = Path(folder), False
            output = _output(arguments, settings, spool)
            try:
                if arguments.host:
                    reading = adapter.read_server(
                        settings,
                        captures,
                        spool,
                        window,
                        output,
                        follow=arguments.follow,
                        on_progress=lambda done, total: work.at(done, total, _DECODING),
                        searching=lambda file, done, total: work.at(done, total, f"reading {file}"),
                    )
                    asyncio.run(reading)
                elif arguments.archive:
                    left = asyncio.run(_read_archive(arguments, settings, captures, spool, window, output, work))
                else:
                    on_progress = partial(
                        work.at, total=sum(file.stat().st_size for file in arguments.files if file.exists())
                    )
                    adapter.read_files(
                        arguments.files,
                        settings,
                        captures,
                        spool,
                        window,
                        output,
                        on_progress,
                        script=arguments.schema,
                        positional=arguments.positional,
                    )
                whole = True
            finally:
                output.finish(sys.stdout.buffer, whole=whole)  # what came before an error is valid
                sys.stdout.buffer.flush()
    except BrokenPipeError:
        leave_stdout()
    except OSError as error:
        raise Refusal(f"{error.filename or 'the binlog'} can't be read: {error.strerror}") from error
    return told(left)


def told(left: str) -> int:
    """Reports what was wanted and not read; returns the exit status."""
    if left:
        print(f"headrace: {left} -> begin there with --from", file=sys.stderr)
    return int(bool(left))


async def _read_archive(
    arguments: argparse.Namespace,
    settings: DestinationSettings,
    captures: Captures,
    spool: Path,
    window: Window,
    output: Printed,
    work: Work,
) -> str:
    configured = Loader(ADAPTERS, environment(arguments.env_file)).load(arguments.config)
    wanted = destination(configured, arguments.archive)
    archived = archive_of(wanted)
    async with coordinated(configured) as shared:
        entries = await (await open_store(shared, wanted)).schema_entries(wanted.name)
    adapter, on_progress = ADAPTERS.source_adapter(), partial(work.at, about=_DECODING)
    return await adapter.read_archive(settings, archived, entries, captures, spool, window, output, on_progress)


def _output(arguments: argparse.Namespace, settings: DestinationSettings, spool: Path) -> Printed:
    output: Printed
    if arguments.stats:
        output = Stats()
    elif arguments.undo:
        output = UndoScript(ADAPTERS.source_adapter().undo, Projections(settings).captures, spool)
    else:
        output = Lines(settings, sys.stdout.buffer)
    return OfKey(arguments.key, output) if arguments.key else output


def _window(arguments: argparse.Namespace) -> Window:
    """Returns the requested part. Raises ValueError in words for people."""
    if [bool(arguments.files), bool(arguments.host), bool(arguments.archive)].count(True) != 1:
        raise ValueError("give one of binlog files, --archive and --host")
    if arguments.key and not arguments.table:
        raise ValueError("--key needs --table")
    if arguments.undo and (arguments.follow or arguments.positional):
        raise ValueError("--undo needs an end and names of columns: leave out --follow and --positional")
    if arguments.follow and not arguments.host:
        raise ValueError("--follow needs --host")
    if arguments.host and not arguments.user:
        raise ValueError("--host needs --user")
    if not arguments.files and (arguments.schema or arguments.positional):
        raise ValueError("--schema and --positional are for files only")
    names = [path.name for path in arguments.files]
    if len(set(names)) != len(names):
        raise ValueError("two of the files have the same name")
    first = None if arguments.host else window_bound(arguments.first, names[:1], "--from")
    return Window(names, first, window_bound(arguments.last, names[-1:], "--to"))


def window_bound(text: str | None, alone: list[str], option: str) -> tuple[str, int] | int | None:
    """Returns file and offset, or microseconds since 1970."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,19}", text) and alone:
        return alone[0], int(text)
    file, colon, offset = text.rpartition(":")
    if colon and "/" not in file and re.fullmatch(r"[^\s:]+\.[^\s:]+", file) and re.fullmatch(r"[0-9]{1,19}", offset):
        return file, int(offset)
    start = _parsed(f"{option} {text}", parse_start, text)
    if isinstance(start, StartTime):
        return int(start.time.timestamp() * 1_000_000)
    if isinstance(start, StartAt):
        return start.file, start.offset
    raise ValueError(f"{option} {text}: should be an offset, file:offset, or a time with its zone")


def _parsed(option: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None


def _format(name: str) -> str:
    if name == "canal-protobuf":
        raise argparse.ArgumentTypeError(
            "canal-protobuf is binary, and this command prints lines of text; canal has the same changes"
        )
    return name


def _settings(arguments: argparse.Namespace) -> DestinationSettings:
    """Returns the settings of a destination that prints. Raises ValueError in words for people."""
    _parsed("--table", compile_filter, arguments.table)
    source: dict[str, Any] = {
        "skip_event": [_parsed("--skip-event", parse_file_position, bound) for bound in arguments.skip_event]
    }
    if arguments.host:
        first = arguments.first or "earliest"
        number = derive_server_id(f"{socket.gethostname()}-{os.getpid()}", "decode")
        source |= {"host": arguments.host, "port": arguments.port, "user": arguments.user, "server_id": number}
        source |= {"password": _password(arguments), "start": _parsed(f"--from {first}", parse_start, first)}
    try:
        message: Mapping[str, Any] = {}
        if arguments.undo:
            message = ADAPTERS.source_adapter().undo.message
            source["undecodable_text"] = "stop"  # a text with another character would be written
        return printing_settings("canal" if message else arguments.format, arguments.table, source, message)
    except ConfigError as error:
        raise ValueError("; ".join(f"--{problem.partition('.')[2]}" for problem in error.problems)) from None


def printing_settings(
    format_: str = "canal",
    include: str = "",
    source: Mapping[str, Any] | None = None,
    message: Mapping[str, Any] | None = None,
) -> DestinationSettings:
    """Returns the settings of a destination that prints; without `source`, of one for files. `message` is what its
    [message] has more. Raises ConfigError."""
    known: dict[str, Any] = {"format": format_, **(message or {})}
    if format_ == "debezium":
        known["debezium"] = {"schemas": False, "schema_topic": "decode"}
    nobody = {"host": "localhost", "user": "nobody", "password": "", "row_image": "any"}
    return Loader(ADAPTERS, {}).make_destination(
        {
            "name": "decode",
            "source": {**nobody, **(source or {})},
            "filter": {"include": include},
            "message": known,
            "route": {"topic": "decode"},
            "sink": {"type": "jsonl", "path": "-"},
        }
    )


def _password(arguments: argparse.Namespace) -> str:
    if arguments.ask_password:
        return getpass.getpass(f"Password of {arguments.user}: ")
    if arguments.password_env:
        if arguments.password_env not in os.environ:
            raise ValueError(f"--password-env: the environment variable {arguments.password_env} is not set")
        return os.environ[arguments.password_env]
    return ""
