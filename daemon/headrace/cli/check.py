"""`headrace check`: connects to everything that the configuration names and reports what is missing, with its
remedy."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace import runtime
from headrace.cli.check_folders import check_folders
from headrace.cli.check_native import native_use
from headrace.cli.check_report import JsonReport, Report, SqlReport
from headrace.cli.common import add_config, operator
from headrace.cli.decode import printing_settings
from headrace.cli.wiring import ADAPTERS, Wiring, inspection, new_format
from headrace.destination.lost_state import sign_of_life, state_lost
from headrace.errors import HeadraceError, SourceMisconfigured
from headrace.pipeline.projection import Projections
from headrace.pipeline.rule_checks import check_rules
from headrace.ports.finding import Finding, Level, failed, ok, problem, warning, wrong
from headrace.ports.inspection import Inspection, Opinion
from headrace.ports.sink import Sink
from headrace.ports.state import Stored
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.snapshot import READS_ROWS
from headrace.settings.values import StartLatest
from headrace_common.arguments import positive


@dataclass(frozen=True, slots=True)
class _Kept:
    """The content of a destination's store, if it exists: its name, the position, and the schema history."""

    store: str
    stored: Stored
    entries: Sequence[dict[str, Any]]


DESCRIPTION = (
    "Checks the state store, the space on disk, and source, rules and sink of each destination, and changes nothing. "
    "It prints a line for each check: ok, warning (it would work, and could be better, or it can't be checked) or "
    "wrong, and how to correct it. Exit status 0: all is well, warnings included; 1: something is wrong; 2: the "
    "configuration is wrong. With --second-opinion it reads the newest rows instead, by its own reader and by "
    "mysql-replication's parser, and prints a line for each value that differs; exit status 1: one differs by no known "
    "error of mysql-replication."
)
LIMIT = 60.0
"""Maximum seconds for one source or sink, beyond their own limits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--sql", action="store_true", help="print only the SQL statements that correct the sources")
    instead.add_argument("--json", action="store_true", help="print the findings as JSON")
    instead.add_argument(
        "--second-opinion",
        type=positive,
        metavar="N",
        help="instead: read the newest N rows events of the captured tables with two readers, and show what differs",
    )
    parser.set_defaults(call=run)


async def run(settings: Settings, arguments: argparse.Namespace) -> int:
    if arguments.second_opinion:
        return await _compare_readers(settings, arguments.second_opinion)
    return await command(settings, SqlReport() if arguments.sql else JsonReport() if arguments.json else Report())


async def command(settings: Settings, report: Report) -> int:
    """Reports the findings; returns the exit status."""
    shared = Wiring(settings, command=True)
    stored: dict[str, _Kept] = {}
    unread = await _check_stores(settings, shared, stored, report)
    for name, destination in settings.destinations.items():
        kept = stored.get(name)
        source = shared.inspection(destination)
        reads_rows = _publishes_rows(destination) and (kept is None or kept.stored.position is None)
        known, entries = (kept.stored, kept.entries) if kept is not None else (None, ())
        away = blind = ""
        for number, address in enumerate(source.addresses):
            checking = source.check(number, known, entries, reads_rows=reads_rows)
            found = await _limited("connection", checking)
            report.add(name, f"standby {address}" if number else "source", found, address)
            if not number:
                away, blind = _blind(found, address)
        report.add(name, "state", await _position(shared, destination, kept, name in unread, away, blind))
        rules = (
            [_not_checked("rules", blind)]
            if blind
            else await _limited("rules", _check_rules(settings.daemon, destination, source))
        )
        report.add(name, "rules", rules)
        report.add(name, "sink", await _limited("sink", _check_sink(destination, shared.probe_sink(destination))))
    return report.end()


def _blind(found: Sequence[Finding], address: str) -> tuple[str, str]:
    """Returns why a source can't be queried at all, and why not about its tables; "" if it can."""
    levels = {one.name: one.level for one in found}  # a connection that breaks later is reported twice, last as wrong
    away = f"the source {address} can't be asked" if levels.get("connection") is Level.WRONG else ""
    sees = levels.get("SELECT", Level.OK) is Level.OK
    return away, away or ("" if sees else "the account may not read the captured tables")


def _not_checked(name: str, why: str) -> Finding:
    return warning(name, f"not checked, because {why}")


async def _check_stores(settings: Settings, shared: Wiring, stored: dict[str, _Kept], report: Report) -> Container[str]:
    """Checks each store once, the free disk space, and with a cluster service whether it can be reached. Fills `stored`
    with the content of each existing store, by destination. Returns the destinations whose store can't be read."""
    unread: set[str] = set()
    try:
        folders = await runtime.in_thread(check_folders, settings)
        archives = {one.archive.url: one.archive for one in settings.destinations.values() if one.archive}
        for archive in (one for url, one in archives.items() if url is not None):
            folders += await _limited("archive", _check_object_store(archive))
        report.add("", "daemon", folders)
        try:
            await shared.open()
        except HeadraceError as error:
            report.add("", "state", [failed("store", error)])
            return settings.destinations
        found: dict[str, list[Finding]] = {}
        for name, destination in settings.destinations.items():
            where = shared.store(destination).describe()
            if where not in found:
                found[where] = await _limited("store", _check_store(shared, destination))
                report.add("", "state", found[where] or [ok("store", f"{where} can be used")])
            if found[where]:
                unread.add(name)
            elif problems := await _limited("store", _read_store(shared, destination, stored)):
                unread.add(name)
                report.add(name, "state", problems)
    finally:
        await shared.close()
    return unread


async def _check_object_store(archive: ArchiveSettings) -> list[Finding]:
    await ADAPTERS.source_adapter().archive(archive, operator()).check()
    return [ok("archive", f"{archive.url} can be used")]


async def _check_store(shared: Wiring, destination: DestinationSettings) -> list[Finding]:
    problems = await shared.store(destination).problems(destination.name)
    parked, _ = shared.parking_stores(destination)
    if parked is not None:
        problems += await parked.problems()
        await parked.close()
    return [problem("store", text) for text in problems]


async def _read_store(shared: Wiring, destination: DestinationSettings, stored: dict[str, _Kept]) -> list[Finding]:
    store, name = shared.store(destination), destination.name
    if not await store.problems(name, must_exist=True):
        await store.open()
        entries = await store.schema_entries(name)
        stored[name] = _Kept(store.describe(), await store.load(name), entries)
    return []


def _publishes_rows(destination: DestinationSettings) -> bool:
    """Returns whether a first start reads the rows that tables have."""
    return destination.source.snapshot_mode in READS_ROWS and destination.filter.rows


async def _position(
    shared: Wiring, destination: DestinationSettings, kept: _Kept | None, unread: bool, away: str, blind: str
) -> list[Finding]:
    """Returns findings about where the destination would begin, as far as that can be checked. `unread`: its store
    can't be read; `away` and `blind` are the results of _blind()."""
    if unread:
        return [_not_checked("position", "the state store can't be read")]
    known = kept is not None and kept.stored.position is not None
    if away and not known and isinstance(destination.source.start, StartLatest):
        return [_not_checked("position", away)]
    return await _limited("position", _check_state(shared, destination, kept, blind))


async def _check_state(
    shared: Wiring, destination: DestinationSettings, kept: _Kept | None, blind: str
) -> list[Finding]:
    """Returns findings about where the destination would begin."""
    source, known = destination.source, kept.stored if kept is not None else None
    if known is not None and known.position is not None:
        return [ok("position", f"it goes on from {known.position}")]
    if not isinstance(source.start, StartLatest):
        return [ok("position", "nothing is stored: it begins by [source] start")]
    if source.on_state_lost == "fail" and (known is None or not known.version):
        second = shared.source(destination).second_connection()
        try:
            heartbeat = await second.stored_heartbeat(required=True) if destination.heartbeat.enabled else None
        finally:
            await second.close()
        if sign := sign_of_life(heartbeat, kept.entries if kept is not None else ()):
            error = state_lost(kept.store if kept is not None else "a store that is not made yet", sign)
            return [failed("position", error)]
    begins = "nothing is stored: it begins at the end of the binlog"
    if not _publishes_rows(destination):
        return [warning("position", f"{begins}; rows that are there already are not published")]
    return [
        ok("position", f"{begins}, and publishes the rows that are there"),
        *([_not_checked("snapshot", blind)] if blind else await _tables(shared, destination)),
    ]


async def _tables(shared: Wiring, destination: DestinationSettings) -> list[Finding]:
    """Returns what a first start would read, or why it can't."""
    captures = Projections(destination).captures
    reader = await shared.inspection(destination).reader(of_snapshots=True)
    try:
        await reader.require()
        lacks = await reader.lacks()
        facts = [
            one
            for one in (await reader.tables()).tables
            if captures(one.schema, one.table) and not lacks(one.schema, one.table)
        ]
    except SourceMisconfigured as error:
        remedy = error.remedy and f'{error.remedy}; or set [source] snapshot = "never"'
        return [wrong("snapshot", str(error.args[0]), remedy)]
    finally:
        await reader.close()
    if not facts:
        return [warning("snapshot", "no captured table is to be seen", "check [filter]")]
    rows, size = sum(one.rows for one in facts), sum(one.size for one in facts)
    about = f"about {rows:,} rows of {len(facts):,} tables, {size / 2**20:,.0f} MiB, as the source estimates them"
    return [ok("snapshot", f"the first start publishes {about}")]


async def _check_rules(daemon: DaemonSettings, destination: DestinationSettings, source: Inspection) -> list[Finding]:
    tables, fmt = await source.tables(lambda _, __: True), new_format(destination)
    return check_rules(destination, fmt, tables) + native_use(daemon, destination, fmt, tables)


async def _check_sink(destination: DestinationSettings, sink: Sink) -> list[Finding]:
    try:
        found = await sink.check()
    finally:
        await sink.abort()
    if any(one.level is Level.WRONG for one in found):
        return found
    return [ok("sink", f"the {destination.sink.type} sink can be written to"), *found]


# -- the second opinion -------------------------------------------------------------------------------------------


async def _compare_readers(settings: Settings, count: int) -> int:
    report, well, plain = Report(), True, printing_settings()

    async def compare(destination: DestinationSettings) -> Opinion:
        with TemporaryDirectory(prefix="headrace-") as folder:
            return await inspection(destination, settings.daemon).second_opinion(count, plain, Path(folder))

    for name, destination in settings.destinations.items():
        try:
            async with asyncio.timeout(LIMIT):
                opinion = await compare(destination)
        except TimeoutError:
            late = f"no result within {LIMIT:g} s: ask for fewer events"
            report.add(name, "source", [wrong("second opinion", late)])
            well = False
            continue
        except HeadraceError as error:
            report.add(name, "source", [failed("second opinion", error)])
            well = False
            continue
        _print_opinion(name, opinion)
        well &= not opinion.differences
    return 0 if well else 1


def _print_opinion(name: str, opinion: Opinion) -> None:
    for line in opinion.shown:
        print(f"{name}: differs  {line}")
    if opinion.differences > len(opinion.shown):
        print(f"{name}: differs  and {opinion.differences - len(opinion.shown):,} more")
    for words, counts in (("known   ", opinion.known), ("left out", opinion.left_out)):
        for what, times in sorted(counts.items()):
            print(f"{name}: {words} {times:,} x {what}")
    count = opinion.differences
    differ = f"{count:,} differ{'' if count > 1 else 's'}" if count else "none differs but by known errors"
    print(f"{name}: both read {opinion.values:,} values of {opinion.events:,} rows events; {differ}")


async def _limited(name: str, checking: Awaitable[list[Finding]]) -> list[Finding]:
    """Returns the findings of a check, or one that says why it failed: an error on one side never hides the other's
    findings."""
    try:
        async with asyncio.timeout(LIMIT):
            return await checking
    except TimeoutError:
        return [wrong(name, f"no answer within {LIMIT:g} s")]
    except HeadraceError as error:
        return [failed(name, error)]
    except Exception as error:
        return [wrong(name, f"an unexpected error, {type(error).__name__}: {error}")]
