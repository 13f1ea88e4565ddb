"""Calls the operator's program for binlogs that neither the source nor the archive has, and imports what it brings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, STDOUT
from tempfile import TemporaryDirectory
from typing import IO

import structlog

from headrace import runtime, tasks
from headrace.errors import HeadraceError
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.commands import MysqlArchiveCommands
from headrace.mysql.archive.journal import COMMAND
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.inventory import Inventory, take_inventory
from headrace.mysql.wire.binlog_file import file_number, packets
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import SourceSettings

log = structlog.get_logger(__name__)

_SHOWN = 300
"""Bytes of a program's last output that an error shows."""
_PREFIX, _LEFT = "fetched-", 3600.0
"""The first letters of the name of a folder that a program writes to; and the seconds after its time limit from which
on nobody uses the folder."""
_LAST = 1.0
"""Seconds for the rest of the output of a program that has ended."""


class NotBrought(Exception):
    """The program has not brought a file; the text is a clause about the program."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a fetched file must be."""

    server: str
    """The identity of its server."""
    server_id: int
    """The server's id; 0 if it is not known."""
    gtids: str = ""
    """What had been read before it, and may have been executed before it; "" if that is not known."""
    before: str = ""
    """The name of the archived file that it continues; "" if there is none."""


async def fetch_missing(
    archive: Archive, settings: ArchiveSettings, daemon: DaemonSettings, address: SourceSettings, position: Position
) -> str:
    """Fetches the binlogs from a position on that are missing, up to those that the archive or the source has. Each is
    imported before the next one is fetched. Returns, as a clause, why one is still missing; "" if none is. Raises
    ArchiveError and SourceError."""
    async with await SourceConnection.open(address_of(address)) as connection:
        await connection.load_variables()
        inventory = await take_inventory(connection)
        same = inventory.server_uuid == position.server_uuid
        server_id = int(connection.variables.get("server_id", "0")) if same else 0
    await archive.refresh()
    names = missing_names(archive, position, inventory)
    for at, name in enumerate(names):
        log.info("fetching a binlog that the source and the archive lack", file=name, missing=len(names) - at)
        began = runtime.monotonic()
        before = names[at - 1] if at else position.file if name != position.file else ""
        expected = Expected(position.server_uuid, server_id, position.gtid_set if name == position.file else "", before)
        try:
            await fetch(archive, settings, daemon, name, expected)
        except (NotBrought, HeadraceError) as error:
            return f"'[archive] fetch_command' has not brought {name}: {error}"
        log.info("a binlog was fetched and archived", file=name, seconds=round(runtime.monotonic() - began, 1))
    return ""


def missing_names(archive: Archive, position: Position, inventory: Inventory) -> list[str]:
    """Returns the names of the position's server's binlogs that neither has, from the position on: up to the next
    archived line, or to the oldest file of the source."""
    lines = [line for line in archive.lines if line.server == position.server_uuid and line.files]
    first = file_number(position.file)
    if not first:  # it has GTIDs only
        return []
    for line in lines:
        if line.index_of(position.file) is not None:
            last = line.files[-1]
            first = file_number(last.name) + last.closed  # an incomplete one is fetched whole
    beginnings = [line.files[0].name for line in lines if line.index_of(position.file) is None]
    if inventory.server_uuid == position.server_uuid:
        beginnings.append(inventory.readable[0].name)
    end = min((number for name in beginnings if (number := file_number(name)) >= first), default=first)
    base, _, digits = position.file.rpartition(".")
    return [f"{base}.{number:0{len(digits)}d}" for number in range(first, end)]


async def fetch(
    archive: Archive, settings: ArchiveSettings, daemon: DaemonSettings, name: str, expected: Expected
) -> None:
    """Fetches and imports one file. Raises NotBrought, and HeadraceError for a file that does not fit; nothing of it is
    archived then."""
    spool = daemon.spool.resolve()  # programs may change their folder
    await runtime.in_thread(_prepare, spool, runtime.now() - settings.fetch_timeout - _LEFT)
    with TemporaryDirectory(dir=spool, prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        await _run([*settings.fetch_command, name, folder], settings.fetch_timeout)
        file = Path(folder, name)
        if not await runtime.in_thread(file.is_file):
            raise NotBrought("it has ended with status 0, and there is no such file in the folder that it was given")
        await runtime.in_thread(_require, file, expected)
        commands = MysqlArchiveCommands(settings, daemon.node)
        await commands.add([file], expected.server, lambda *_: None)
    await archive.refresh()
    ours = [one for one in archive.lines if one.server == expected.server]
    line, added = next((one, file) for one in reversed(ours) for file in one.files if file.name == name)
    before = next((file for one in reversed(ours) for file in one.files if file.name == expected.before), None)
    if before is not None and not await archive.follows(before, added, whole=before.closed):
        await archive.journal.claim(daemon.node + COMMAND)
        await archive.prune(line, [added])
        raise NotBrought(f"its file does not continue {expected.before}, so it is of another server or another history")


def _prepare(spool: Path, before: float) -> None:
    """Creates the spool, and deletes the folders that a killed daemon has left in it: those that were last changed
    earlier than `before`, in seconds since 1970."""
    spool.mkdir(parents=True, exist_ok=True)
    for one in spool.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if one.stat().st_mtime < before:
                shutil.rmtree(one)


def _require(file: Path, expected: Expected) -> None:
    """Raises NotBrought if a file is not the expected one, and NotUnderstood if it is no binlog."""
    head = next(packets(file), b"")
    server_id = int.from_bytes(head[10:14], "little")
    if expected.server_id and server_id != expected.server_id:
        raise NotBrought(f"its file is of the server with server_id {server_id} instead of {expected.server_id}")
    recorder = Recorder(file.name, 4, checksums=False, source=str(file))
    recorder.feed(head)
    if expected.gtids and ":" in recorder.gtids and not GtidSet(expected.gtids).contains(GtidSet(recorder.gtids)):
        raise NotBrought("its file comes after transactions that were not read, so it is of another history")


async def _run(command: list[str], limit: float) -> None:
    """Runs a program in a process group of its own, which ends with this call. Raises NotBrought."""
    # With asyncio's own pipe, wait() would also wait for others that have it open.
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb", buffering=0) as output, os.fdopen(writes, "wb", buffering=0) as into:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=into, stderr=STDOUT, start_new_session=True
            )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise NotBrought(f"{command[0]} can't be started: {why}") from error
        into.close()
        reading = asyncio.create_task(_end_of(output))
        try:
            async with asyncio.timeout(limit):
                status = await process.wait()
        except TimeoutError:
            raise NotBrought(f"it took longer than 'fetch_timeout', {limit:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # also what it has left behind
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await asyncio.wait([reading], timeout=_LAST)  # longer only if something has left the group
            said = reading.result() if reading.done() else ""
            await tasks.cancel(reading)
    if status:
        how = f"has ended with status {status}" if status > 0 else f"was ended by signal {-status}"
        raise NotBrought(f"it {how}{f': {said}' if said else ''}")


async def _end_of(output: IO[bytes]) -> str:
    """Returns the end of a program's output on one line, without control characters."""
    stream, end = asyncio.StreamReader(), b""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), output)
    try:
        while data := await stream.read(1 << 16):
            end = (end + data)[-_SHOWN:]
    finally:
        transport.close()
    text = end.decode("utf-8", "replace")
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())
