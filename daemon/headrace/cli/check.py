"""`headrace check`: connects to everything that the configuration names and says what is missing, with its remedy."""

from __future__ import annotations

import argparse
import asyncio
import functools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace.cli.common import add_config, positive
from headrace.cli.decode import printing_settings
from headrace.cli.decode_output import Output
from headrace.cli.decode_read import Window, read_files
from headrace.cli.wiring import Wiring, new_format
from headrace.destination.lost_state import sign_of_life, state_lost
from headrace.errors import HeadraceError, SourceMisconfigured, named
from headrace.model import RowsChange
from headrace.mysql.checks import check_source
from headrace.mysql.schema.current import schemas_now
from headrace.mysql.second_connection import MysqlSecondConnection
from headrace.mysql.second_opinion import Opinion, second_opinion
from headrace.mysql.source import MysqlSource, addresses
from headrace.pipeline.projection import Projections
from headrace.pipeline.rule_checks import check_rules
from headrace.ports.finding import Finding
from headrace.ports.sink import Sink
from headrace.ports.state import Stored
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.snapshot import READS_ROWS
from headrace.settings.values import StartLatest


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is in the store of a destination, where there is one: its name, the position, and the schema history."""

    store: str
    stored: Stored
    entries: Sequence[dict[str, Any]]


DESCRIPTION = (
    "Looks at the state store, and at source, rules and sink of each destination, and changes nothing. A line for each "
    "thing looked at: ok, note (it would work, and could be better), MISSING or WRONG, and what mends it. Exit status "
    "0: all is well, notes included; 1: something is not; 2: the configuration is wrong. With --second-opinion it "
    "reads the newest rows instead, by its own reader and by mysql-replication's parser, and prints a line for each "
    "value that differs; exit status 1: one differs by no known error of mysql-replication."
)
LIMIT = 60.0
"""Seconds for one source or sink, beyond the limits that they keep themselves."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.add_argument(
        "--second-opinion",
        type=positive,
        metavar="N",
        help="instead: read the newest N rows events of the captured tables with two readers, and show what differs",
    )
    parser.set_defaults(call=run)


async def run(settings: Settings, arguments: argparse.Namespace) -> int:
    if arguments.second_opinion:
        return await _compare_readers(settings, arguments.second_opinion)
    return await command(settings)


async def command(settings: Settings) -> int:
    """Prints the findings; the exit status."""
    shared = Wiring(settings, command=True)
    stored: dict[str, _Kept] = {}
    well = await _check_stores(settings, shared, stored)
    for name, destination in settings.destinations.items():
        for number, source in enumerate(addresses(destination.source)):
            where = f", standby {source.host}:{source.port}" if number else ""
            checking = check_source(
                source,
                source.server_id,
                node=settings.daemon.node,
                destination=name,
                heartbeat=destination.heartbeat,
                position=stored[name].stored.position if name in stored else None,
            )
            well &= _tell(name, await _limited("source", checking), where)
        well &= _tell(name, await _limited("state", _check_state(settings.daemon, destination, stored.get(name))))
        well &= _tell(name, await _limited("rules", _check_rules(destination)))
        well &= _tell(name, await _limited("sink", _check_sink(destination, shared.probe_sink(destination))))
    print("all is well" if well else "not all is well: see the lines with MISSING and WRONG")
    return 0 if well else 1


async def _check_stores(settings: Settings, shared: Wiring, stored: dict[str, _Kept]) -> bool:
    """Each store once, and with a cluster service whether it can be reached. Into `stored` comes by destination what is
    in its store, where there is one: its name, the position, and the schema history."""
    well = True
    try:
        await shared.open()
        seen = {shared.store(one).describe(): one for one in settings.destinations.values()}
        for name, destination in seen.items():
            problems = await shared.store(destination).problems(destination.name)
            parked, _ = shared.parking_stores(destination)
            if parked is not None:
                problems += await parked.problems()
                await parked.close()
            found = [Finding("store", False, problem) for problem in problems]
            well &= _print("state", found or [Finding("store", True, f"{name} can be used")])
        for name, destination in settings.destinations.items():
            store = shared.store(destination)
            if not await store.problems(name, must_exist=True):
                await store.open()
                entries = await store.schema_entries(name)
                stored[name] = _Kept(store.describe(), await store.load(name), entries)
    except HeadraceError as error:
        well = _print("state", [Finding("store", False, str(error.args[0]), error.remedy)])
    finally:
        await shared.close()
    return well


async def _check_state(daemon: DaemonSettings, destination: DestinationSettings, kept: _Kept | None) -> list[Finding]:
    """Where the destination would begin."""
    source, known = destination.source, kept.stored if kept is not None else None
    if known is not None and known.position is not None:
        return [Finding("position", True, f"it goes on from {known.position}")]
    if not isinstance(source.start, StartLatest):
        return [Finding("position", True, "nothing is stored: it begins by [source] start")]
    if source.on_state_lost == "fail" and (known is None or not known.version):
        second = MysqlSecondConnection(source, destination.name)
        try:
            heartbeat = await second.stored_heartbeat(required=True) if destination.heartbeat.enabled else None
        finally:
            await second.close()
        if sign := sign_of_life(heartbeat, kept.entries if kept is not None else ()):
            error = state_lost(kept.store if kept is not None else "a store that is not made yet", sign)
            return [Finding("position", False, str(error.args[0]), error.remedy)]
    begins = "nothing is stored: it begins at the end of the binlog"
    if source.snapshot_mode not in READS_ROWS or not destination.filter.rows:
        return [Finding("position", True, f"{begins}; rows that are there already are not published", note=True)]
    return [
        Finding("position", True, f"{begins}, and publishes the rows that are there"),
        *await _tables(daemon, destination),
    ]


async def _tables(daemon: DaemonSettings, destination: DestinationSettings) -> list[Finding]:
    """What a first start would read, or why it can't."""
    captures = Projections(destination).captures
    reader = await MysqlSource(destination, daemon, captures, named=False).reader_now(of_snapshots=True)
    try:
        await reader.require()
        facts = [one for one in (await reader.tables()).tables if captures(one.schema, one.table)]
    except SourceMisconfigured as error:
        remedy = error.remedy and f'{error.remedy}; or set [source] snapshot = "never"'
        return [Finding("snapshot", False, str(error.args[0]), remedy)]
    finally:
        await reader.close()
    if not facts:
        remedy = "look at [filter], and grant SELECT on the tables: the account sees no others"
        return [Finding("snapshot", True, "no captured table is to be seen", remedy, note=True)]
    rows, size = sum(one.rows for one in facts), sum(one.size for one in facts)
    about = f"about {rows:,} rows of {len(facts):,} tables, {size / 2**20:,.0f} MiB, as the source estimates them"
    return [Finding("snapshot", True, f"the first start publishes {about}")]


async def _check_rules(destination: DestinationSettings) -> list[Finding]:
    return check_rules(destination, new_format(destination), await schemas_now(destination.source, lambda _, __: True))


async def _check_sink(destination: DestinationSettings, sink: Sink) -> list[Finding]:
    try:
        problems = await sink.check()
    finally:
        await sink.abort()
    if problems:
        return [Finding("sink", False, problem) for problem in problems]
    return [Finding("sink", True, f"the {destination.sink.type} sink can be written to")]


# -- the second opinion -------------------------------------------------------------------------------------------


class _Changes(Output):
    """Keeps the changes of rows."""

    def __init__(self) -> None:
        self.changes: list[RowsChange] = []

    def emit(self, change: RowsChange) -> None:
        self.changes.append(change)


def decode_file(settings: DestinationSettings, spool: Path, path: Path) -> Sequence[RowsChange]:
    """The changes in a binlog file, as `headrace decode` reads it. Raises NotUnderstood and OSError."""
    output = _Changes()
    read_files([path], settings, spool, Window([path.name], None, None), output)
    return output.changes


async def _compare_readers(settings: Settings, count: int) -> int:
    well, plain = True, printing_settings()

    async def look(destination: DestinationSettings) -> Opinion:
        with TemporaryDirectory(prefix="headrace-") as folder:
            decode = functools.partial(decode_file, plain, Path(folder))
            captures = Projections(destination).captures
            return await second_opinion(destination.source, captures, count, decode, Path(folder))

    for name, destination in settings.destinations.items():
        try:
            async with asyncio.timeout(LIMIT):
                opinion = await look(destination)
        except TimeoutError:
            late = f"no result within {LIMIT:g} s: ask for fewer events"
            well &= _tell(name, [Finding("second opinion", False, late)])
            continue
        except HeadraceError as error:
            well &= _tell(name, [Finding("second opinion", False, str(error.args[0]), error.remedy)])
            continue
        _print_opinion(name, opinion)
        well &= not opinion.differences
    return 0 if well else 1


def _print_opinion(name: str, opinion: Opinion) -> None:
    for line in opinion.told:
        print(f"{name}: differs  {line}")
    if opinion.differences > len(opinion.told):
        print(f"{name}: differs  and {opinion.differences - len(opinion.told):,} more")
    for words, counts in (("known   ", opinion.known), ("left out", opinion.left_out)):
        for what, times in sorted(counts.items()):
            print(f"{name}: {words} {times:,} x {what}")
    count = opinion.differences
    differ = f"{count:,} differ{'' if count > 1 else 's'}" if count else "none differs but by known errors"
    print(f"{name}: both read {opinion.values:,} values of {opinion.events:,} rows events; {differ}")


async def _limited(name: str, checking: Awaitable[list[Finding]]) -> list[Finding]:
    """What was found, or a finding that says why nothing could be: one broken side never hides the other's findings."""
    try:
        async with asyncio.timeout(LIMIT):
            return await checking
    except TimeoutError:
        return [Finding(name, False, f"no answer within {LIMIT:g} s")]
    except HeadraceError as error:
        return [Finding(name, False, str(error.args[0]), error.remedy)]
    except Exception as error:
        return [Finding(name, False, f"an unexpected error, {type(error).__name__}: {error}")]


def _tell(destination: str, findings: list[Finding], where: str = "") -> bool:
    """Prints what was found of a destination; whether all was well."""
    told = [
        replace(one, sentence=named(one.sentence, destination), remedy=named(one.remedy, destination))
        for one in findings
    ]
    return _print(f"{destination}{where}", told)


def _print(subject: str, findings: list[Finding]) -> bool:
    """A line a finding, its remedy below; whether all were well."""
    for finding in findings:
        # Grants go by their name in SQL, in capitals; what else is not well is there, but with a wrong value.
        word = "MISSING" if finding.name.isupper() else "WRONG"
        if finding.ok:
            word = "note" if finding.note else "ok"
        print(f"{subject}: {word:<7} {finding.name}: {finding.sentence}")
        if finding.remedy:
            print(f"{' ' * len(subject)}          -> {finding.remedy}")
    return all(finding.ok for finding in findings)
