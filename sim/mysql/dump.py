"""Serves the binlog to one reader (MySQL source code documentation, COM_BINLOG_DUMP and COM_BINLOG_DUMP_GTID; order and
texts as rpl_binlog_sender.cc has them)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from sim.mysql import events, wire
from sim.mysql.binlog import MAGIC, BinlogFile
from sim.mysql.errors import SqlError
from sim.mysql.gtids import Gtids

if TYPE_CHECKING:
    from sim.mysql.server import Server

_NO_FILE = "Could not find first log file name in binary log index file"
_NO_NEXT = "could not find next log"
_TORN = "binlog truncated in the middle of event; consider out of disk space on source"
_SAME_ID = "A replica with the same server_uuid/server_id as this replica has connected to the source"
_AHEAD = (
    "Replica has more GTIDs than the source has, using the source's SERVER_UUID. This may indicate that the the last "
    "binary log file was truncated or lost, e.g., after a power failure when sync_binlog != 1. The source may have "
    "rolled back transactions that were already replicated to the replica. Replicate any transactions that source has "
    "rolled back from replica to source, and/or commit empty transactions on source to account for transactions that "
    "have been committed on source but are not included in GTID_EXECUTED."
)
_PURGED = (
    "Cannot replicate because the source purged required binary logs. Replicate the missing transactions from "
    "elsewhere, or provision a new replica from backup. Consider increasing the source's binary log expiration period. "
    "The GTID set sent by the replica is '{sent}', and the missing transactions are '{missing}'"
)
_LARGEST_EVENT = 1 << 30
_AT_ONCE = 1 << 20
"""Bytes of one write."""


class Dump:
    """One dump. `write` sends bytes, `finish` ends the connection after them. `beat` is the seconds between heartbeats
    while nothing is written, 0 for none. `gtids` are those that the reader has, None for a dump by position."""

    def __init__(
        self,
        server: Server,
        server_id: int,
        uuid: str,
        beat: float,
        gtids: Gtids | None,
        write: Callable[[bytes], None],
        finish: Callable[[], None],
    ) -> None:
        self.server, self.server_id, self.uuid, self.beat, self._gtids = server, server_id, uuid, beat, gtids
        self._write, self._finish = write, finish
        self.file: BinlogFile | None = None
        self.paused = self.held = self.closed = False
        """`held`: a fault, while which it sends nothing although there is more."""
        self._at = 0
        """The number of the next event."""
        self._read = 0
        """Where the last event ends that was read from the file."""
        self._sequence = 1
        self._first = ("", 4)
        self._skipping = False
        self._skipped_end = 0
        self._scheduled = False
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # -- start --------------------------------------------------------------------------------------------------------

    def start(self, name: str, offset: int) -> None:
        """Begins at a position, or where the GTID set ends."""
        try:
            file, at = self._by_gtids() if self._gtids is not None else self._by_position(name, offset)
        except SqlError as error:
            self.fail(error.text)
            return
        offset = 4 if self._gtids is not None else offset
        self.file, self._first = file, (file.name, offset)
        self._begin_file(file, offset)
        if at is None:
            self._fail_inside(file, offset)
            return
        self._at = max(at, 1)  # the FORMAT_DESCRIPTION is sent
        self.server.dumps.append(self)
        self.pump()
        if self.beat > 0 and not self.closed:
            self._timer = asyncio.get_running_loop().call_later(self.beat, self._on_timer)

    def _by_position(self, name: str, offset: int) -> tuple[BinlogFile, int | None]:
        binlog = self.server.engine.binlog
        number = binlog.find(name) if name else 0
        if number is None:
            raise SqlError(1236, _NO_FILE)
        file = binlog.files[number]
        if offset < 4:
            raise SqlError(1236, "Client requested source to start replication from position < 4")
        if offset > file.size + len(file.torn):
            raise SqlError(1236, "Client requested source to start replication from position > file size")
        return file, file.index_of(offset)

    def _by_gtids(self) -> tuple[BinlogFile, int]:
        engine, wanted = self.server.engine, self._gtids
        assert wanted is not None
        if not wanted.of(engine.uuid).within(engine.executed):
            raise SqlError(1236, _AHEAD)
        if not engine.purged.within(wanted):
            missing = engine.purged.minus(wanted)
            raise SqlError(1236, _PURGED.format(sent=wanted, missing=missing))
        files = engine.binlog.files
        file = next((one for one in reversed(files) if one.previous.within(wanted)), files[0])
        return file, 0

    def _begin_file(self, file: BinlogFile, offset: int) -> None:
        """Sends the ROTATE that names a file, and the file's FORMAT_DESCRIPTION."""
        server_id, body = self.server.engine.server_id, events.rotate(file.name, offset)
        rotate = events.event(events.ROTATE, body, 0, server_id, 0, events.ARTIFICIAL)
        description = events.changed(file.events[0], flags=0)
        if offset > 4:
            description = events.changed(description, end=0, created=0)
        self._read = MAGIC + len(description)
        self._send([rotate, description])

    # -- events -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Sends what is new, in the loop's next turn."""
        if not self._scheduled and not self.closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.pump)

    def resume(self) -> None:
        """Goes on: the reader takes bytes again."""
        self.paused = False
        self.wake()

    def hold(self, held: bool) -> None:
        """Sends nothing, or goes on."""
        self.held = held
        if not held:
            self.wake()

    def pump(self) -> None:
        """Sends events up to the end of the binlog, or until the reader does not take them any more."""
        self._scheduled = False
        while not (self.closed or self.paused or self.held) and self.file is not None:
            file = self.file
            if self._at < len(file.events):
                self._send(self._take(file))
            elif not self._next_file(file):
                break

    def _take(self, file: BinlogFile) -> list[bytes]:
        """Returns the next events that the reader does not have."""
        found: list[bytes] = []
        size, listed = 0, file.events
        at, end = self._at, len(listed)
        while at < end and size < _AT_ONCE:
            event = listed[at]
            at += 1
            if self._gtids is not None and self._skips(file, at, event, found):
                continue
            found.append(event)
            size += len(event)
        if at > self._at:
            self._read = file.offsets[at] if at < end else file.size
        self._at = at
        if at == end and self._skipping and self._skipped_end:
            found.append(self._heartbeat(file, self._skipped_end))
            self._skipped_end = 0
        return found

    def _skips(self, file: BinlogFile, at: int, event: bytes, found: list[bytes]) -> bool:
        """Returns whether an event belongs to a transaction that the reader has; then a heartbeat tells it the position
        after them."""
        kind = event[4]
        if kind == events.GTID:
            assert self._gtids is not None
            skips = self._gtids.has(*events.gtid_of(event))
            if not skips and self._skipping and self._skipped_end:
                found.append(self._heartbeat(file, self._skipped_end))
                self._skipped_end = 0
            self._skipping = skips
        elif kind in (events.ROTATE, events.STOP, events.PREVIOUS_GTIDS, events.FORMAT):
            self._skipping = False
        if self._skipping:
            self._skipped_end = file.offsets[at] if at < len(file.offsets) else file.size
        return self._skipping

    def _next_file(self, file: BinlogFile) -> bool:
        """Goes to the next file; returns whether there is one."""
        files = self.server.engine.binlog.files
        if file is files[-1]:
            return False
        if file.torn:
            self.fail(self._with_positions(_TORN, file, file.size + len(file.torn)))
            return False
        number = next((at for at, one in enumerate(files) if one is file), None)
        if number is None:
            self.fail(self._with_positions(_NO_NEXT, file, file.size))
            return False
        self.file, self._at, self._skipping, self._skipped_end = files[number + 1], 1, False, 0
        self._begin_file(self.file, 4)
        return True

    def _send(self, listed: list[bytes]) -> None:
        sequence, parts = self._sequence, []
        for event in listed:
            size = len(event) + 1
            if size < wire.LARGEST:
                parts.append(size.to_bytes(3, "little") + bytes((sequence & 255, 0)))
                parts.append(event)
                sequence += 1
            else:
                packets, sequence = wire.framed(b"\0" + event, sequence)
                parts.append(packets)
        self._sequence = sequence
        self._sent_at = asyncio.get_running_loop().time()
        self._write(b"".join(parts))

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def _heartbeat(self, file: BinlogFile, offset: int) -> bytes:
        return events.event(events.HEARTBEAT, file.name.encode(), 0, self.server.engine.server_id, offset)

    def _on_timer(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        if self.closed or self.file is None:
            return
        due = self._sent_at + self.beat
        if due - loop.time() <= 1e-6:
            if not self.paused and not self.held and self._at == len(self.file.events):
                self._send([self._heartbeat(self.file, self.file.size)])
            due = loop.time() + self.beat
        self._timer = loop.call_later(due - loop.time(), self._on_timer)

    # -- end ----------------------------------------------------------------------------------------------------------

    def fail(self, text: str, errno: int = 1236) -> None:
        """Ends the dump with an error."""
        packets, self._sequence = wire.framed(wire.error(SqlError(errno, text)), self._sequence)
        if not self.closed:
            self._write(packets)
        self.close()
        self._finish()

    def replace(self) -> None:
        """Ends the dump because another reader of the same name begins."""
        file = self.file
        if file is None:
            return
        position = file.offsets[self._at] if self._at < len(file.offsets) else file.size
        self.fail(f'"{self._with_positions(_SAME_ID, file, position)}"')

    def _with_positions(self, what: str, file: BinlogFile, position: int) -> str:
        first, at = self._first
        return (
            f"{what}; the first event '{first}' at {at}, the last event read from './{file.name}' at {self._read}, the "
            f"last byte read from './{file.name}' at {position}."
        )

    def _fail_inside(self, file: BinlogFile, offset: int) -> None:
        """Ends the dump at an offset that is within an event, as what its bytes look like."""
        raw = file.as_bytes()[offset : offset + 19]
        size = int.from_bytes(raw[9:13], "little")
        end = offset + len(raw)
        if len(raw) < 19 or (19 <= size <= _LARGEST_EVENT and offset + size > file.size):
            what, end = _TORN, file.size + len(file.torn)
        elif size < 19:
            what = "bogus data in log event"
        elif size > _LARGEST_EVENT:
            what = "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source"
        else:
            what, end = "event read from binlog did not pass crc check", offset + size
        self.fail(self._with_positions(what, file, end))

    def end(self) -> None:
        """Ends the dump in order, as a server does that shuts down."""
        packets, self._sequence = wire.framed(wire.eof(0), self._sequence)
        if not self.closed:
            self._write(packets)
        self.close()

    def close(self) -> None:
        """Stops sending."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self in self.server.dumps:
            self.server.dumps.remove(self)
