"""`headrace archive`: lists, verifies, exports, extends and prunes the archive of a destination's source."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from headrace.cli.common import (
    add_command,
    archive_of,
    confirmed,
    coordinated,
    destination,
    open_store,
    operator,
    print_json,
    require_answer,
    time_text,
)
from headrace.cli.terminal import progress, show_table
from headrace.cli.wiring import ADAPTERS
from headrace.errors import ConfigError
from headrace.model import Position
from headrace.ports.archive import ArchiveCommands, ArchivedFile
from headrace.settings.archive import require_unit
from headrace.settings.destination import DestinationSettings, Settings
from headrace_common.values import parse_duration, parse_size

_T = TypeVar("_T", int, float)
DESCRIPTION = (
    "The archive is headrace's own copy of the source's binlogs; see docs/archive.md. All commands may be used while "
    "the daemon runs. Exit status 0: done, or all is well; 1: something is damaged, failed or is refused; 2: the "
    "configuration or the command is wrong."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add = partial(add_command, parser.add_subparsers(metavar="COMMAND", required=True))
    listing = add("list", "list the archived binlog files", _list)
    listing.add_argument("--json", action="store_true", help="as JSON")

    verify = add("verify", "read the whole archive, and say what is damaged or missing", _verify)
    verify.add_argument("--json", action="store_true", help="as JSON")

    export = add("export", "write archived files, byte for byte as the server has written them", _export)
    export.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where they are written")
    export.add_argument("--from", dest="first", default="", metavar="FILE", help="the first one (default: the oldest)")
    export.add_argument("--until", dest="last", default="", metavar="FILE", help="the last one (default: the newest)")

    adding = add("import", "add binlog files that were copied from the server", _import)
    adding.add_argument("files", nargs="+", type=Path, metavar="FILE", help="in order, and without a gap")
    adding.add_argument(
        "--server", default="", metavar="ID", help="server_uuid of the server (default: that of the newest files)"
    )

    prune = add("prune", "delete the oldest files that no destination needs", _prune)
    prune.add_argument("--keep", metavar="AGE", help="keep what is younger, such as 30d (default: [archive] keep)")
    prune.add_argument("--keep-bytes", metavar="SIZE", help="keep as many bytes (default: [archive] keep_bytes)")
    prune.add_argument("--needed-too", action="store_true", help="delete also what destinations still need")
    prune.add_argument("--unused", action="store_true", help="delete also objects that nothing refers to; see verify")
    prune.add_argument("--yes", action="store_true", help="do not ask")


async def _list(settings: Settings, given: argparse.Namespace) -> int:
    files = await _archive(settings, given)[1].files()
    if given.json:
        print_json([asdict(file) for file in files])
    elif not files:
        print(f"{given.name}: nothing is archived yet")
    else:
        _show(files)
    return 0


def _show(files: Sequence[ArchivedFile]) -> None:
    show_table(
        ("SERVER", "LINE", "FILE", "BYTES", "STORED", "FROM", "TO"),
        [
            (
                file.server,
                str(file.line),
                file.name if file.complete else f"{file.name} (incomplete)",
                f"{file.bytes:,}",
                f"{file.stored:,}",
                time_text(file.first_us),
                time_text(file.last_us),
            )
            for file in files
        ],
    )


async def _verify(settings: Settings, given: argparse.Namespace) -> int:
    _, archive = _archive(settings, given)
    with progress("verifying") as work:
        problems = await archive.verify(lambda done, total, what: work.at(done, total, f"verifying {what}"))
    files = await archive.files()
    unused, unused_bytes = await archive.unused() if files and not problems else (0, 0)
    if not files and not problems:
        problems = ["nothing is archived there: check whether the folder or store is the right one, and mounted"]
    if given.json:
        counts = {"files": len(files), "bytes": sum(file.bytes for file in files)}
        print_json({**counts, "unused": unused, "unused_bytes": unused_bytes, "problems": problems})
    else:
        for problem in problems:
            print(problem)
        if unused:
            print(f"{unused:,} objects, {unused_bytes:,} bytes, belong to no file: 'prune --unused' deletes them")
        print(f"{len(files):,} files, {sum(file.bytes for file in files):,} bytes: {len(problems):,} problems")
    return 1 if problems else 0


async def _export(settings: Settings, given: argparse.Namespace) -> int:
    _, archive = _archive(settings, given)
    with progress("exporting") as work:
        names = await archive.export(
            given.to, given.first, given.last, lambda done, total, what: work.at(done, total, f"exporting {what}")
        )
    for name in names:
        print(given.to / name)
    return 0


async def _import(settings: Settings, given: argparse.Namespace) -> int:
    _, archive = _archive(settings, given)
    with progress("importing") as work:
        names = await archive.add(
            given.files, given.server, lambda done, total, what: work.at(done, total, f"importing {what}")
        )
    known = [file.name for file in given.files if file.name not in names]
    for name in names:
        print(f"{name}: added")
    for name in known:
        print(f"{name}: is archived already")
    return 0


async def _prune(settings: Settings, given: argparse.Namespace) -> int:
    found, archive = _archive(settings, given)
    configured = archive_of(found)
    keep = _parsed("--keep", _age, given.keep, configured.keep)
    keep_bytes = _parsed("--keep-bytes", parse_size, given.keep_bytes, configured.keep_bytes)
    if not keep and not keep_bytes and not given.unused:
        raise ConfigError(["how much is kept? Give --keep or --keep-bytes, or set [archive] keep or keep_bytes"])
    require_answer(given.yes)
    needed: Sequence[Position] = ()
    if (keep or keep_bytes) and not given.needed_too:
        async with coordinated(settings) as shared:
            for one in shared.sharing(found):
                await open_store(shared, one)
            use = shared.archive_use(found)
            assert use is not None
            needed = await use.needed()
    files = await archive.prune(keep, keep_bytes, needed, dry_run=True) if keep or keep_bytes else []
    unused, size = await archive.unused() if given.unused else (0, 0)
    if not files and not unused:
        print(
            "nothing to delete: what is left is new enough, small enough, needed by a destination, or the newest file"
        )
        return 0
    if files:
        _show(files)
        if not given.yes:
            print(f"{len(files):,} files are deleted, {sum(file.stored for file in files):,} bytes as stored.")
            if given.needed_too:
                print("Destinations that need them can't continue at their positions then.")
    if unused and not given.yes:
        print(f"{unused:,} objects that belong to no file are deleted, {size:,} bytes.")
    if not await confirmed(given.yes):
        return 1
    if files:
        deleted = await archive.prune(keep, keep_bytes, needed)
        print(f"{len(deleted):,} files deleted, {sum(file.stored for file in deleted):,} bytes as stored")
    if unused:
        unused, size = await archive.unused(delete=True)
        print(f"{unused:,} objects that belonged to no file deleted, {size:,} bytes")
    return 0


def _archive(settings: Settings, given: argparse.Namespace) -> tuple[DestinationSettings, ArchiveCommands]:
    found = destination(settings, given.name)
    return found, ADAPTERS.source_adapter().archive(archive_of(found), operator())


def _age(text: str) -> float:
    return parse_duration(require_unit(text))


def _parsed(option: str, parse: Callable[[str], _T], text: str | None, otherwise: _T) -> _T:
    if text is None:
        return otherwise
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError([f"{option}: {error}"]) from None
