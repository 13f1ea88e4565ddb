"""Reads the stream of changes from a binlog dump. If the dump ends, another dump continues the stream."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from headrace import runtime
from headrace.errors import (
    ArchiveError,
    ArchiveNotKept,
    ContinuesElsewhere,
    HeadraceError,
    PositionLost,
    ServerIdTaken,
    SourceChanged,
    SourceEnded,
    WrongChecksum,
)
from headrace.model import Position, TableSchema
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.opening import Dump
from headrace.mysql.schema.states import reached
from headrace.mysql.table_schemas import TableSchemas
from headrace.mysql.wire.connection import address_of
from headrace.ports.source import ALONE, ChangeStream, LogPosition, Progress, Receiver
from headrace.ports.tables import Watermark

_JOIN, _REJOIN = 1.0, 5.0
"""Seconds between two attempts to join a dump that others read too, and after one that had left us behind."""


class Dumps(ABC):
    """Where a stream gets further dumps from, and who learns how one has ended. What is not abstract is right for a
    source without an archive."""

    spares = False
    """Whether join() may return a dump."""

    @abstractmethod
    async def reopen(self, position: Position) -> Dump:
        """Begins another dump at a position. Raises SourceError and ArchiveError."""

    async def join(self, position: Position, dump: Dump) -> Dump | None:
        """Returns a dump that spares the source, if one continues at a position between two transactions of `dump`."""
        return None

    def ensure_usable(self, dump: Dump) -> None:  # noqa: B027 - a dump of the source always is
        """Raises ContinuesElsewhere or ArchiveNotKept if what a dump brings must not be used any more."""

    def ended(self, position: Position) -> None:  # noqa: B027
        """Notes how far a dump came that has ended where another place has what follows."""

    def disconnected(self) -> None:  # noqa: B027
        """Notes that the source has ended the dump because another replica has the same server id."""

    def first_damage(self, place: str) -> bool:
        """Returns whether this is the first time that the event at a place has a wrong checksum."""
        return False

    def lost(self, error: PositionLost) -> bool:
        """Notes that the source has lost the position; returns whether reopen() may find it elsewhere."""
        return False

    def spare_failed(self, error: ArchiveError) -> None:  # noqa: B027
        """Notes that the archive, which was read to spare the source, can't be read."""


class MysqlStream(ChangeStream):
    """Implements ChangeStream for MySQL and MariaDB."""

    def __init__(
        self, dump: Dump, schemas: TableSchemas, receiver: Receiver, options: DecoderOptions, dumps: Dumps
    ) -> None:
        self._dumps = dumps
        self._joined, self._join_at = False, runtime.monotonic() + _JOIN
        """Whether the dump is the archiver's, and when another one is looked for next, by the monotonic clock."""
        self._dump, self._schemas, self._receiver, self._options = dump, schemas, receiver, options
        self._decoder = self._make_decoder(dump)
        self._data, self._at, self._more = b"", 0, False
        """The received data, the offset up to which it is decoded, and whether more of it can be decoded without
        another receive."""
        self._feeding = False
        self._bytes, self._received = 0, dump.packets.last_receive
        self._asked_for_unknown = False
        """Whether somebody has requested a table whose schema is unknown."""
        self._end: HeadraceError | None = None
        """The error that ended the stream. The next read() raises it."""
        self._before = Progress("", 0, 0)
        """The counts of the earlier dumps of this stream."""

    def _make_decoder(self, dump: Dump) -> Decoder:
        schemas = self._schemas
        decoder = Decoder(
            dump.start,
            self._receiver,
            captures=schemas.captures,
            history=schemas.history,
            comparison=schemas.comparison,
            options=self._options,
            apart=True,
        )
        decoder.cursor.source = f"the source at {address_of(dump.server.settings).name}"
        return decoder

    async def read(self) -> None:
        if self._end is not None:
            raise self._end
        decoder, described, version = self._decoder, self._decoder.described, self._schemas.history.version
        came = self._dump.packets.bytes_received
        try:
            if described.wanted is not None:
                described.learned(await self._schemas.learn(described.wanted, decoder.position()))
            elif (awaited := decoder.maps.awaited) is not None:
                decoder.maps.awaited = None
                await awaited()
            elif decoder.statements.waiting is not None:
                await decoder.statements.read_apart()
            elif self._asked_for_unknown:
                self._asked_for_unknown = False
                await self._schemas.read_again(decoder.position())
            elif self._schemas.comparison.is_due():
                await self._schemas.comparison.run(decoder.position())
            elif decoder.splitter.thread is not None:
                made = asyncio.wrap_future(decoder.splitter.thread)
                made.add_done_callback(lambda done: done.cancelled() or done.exception())  # the decoder handles it
                await asyncio.wait([made])
            elif not self._more or (self._is_join_due() and not decoder.transactions.in_group):
                if await self._joins():
                    decoder, came = self._decoder, 0
                if not self._more:
                    await self._receive()
            if self._schemas.history.version != version:
                decoder.refresh()
            if self._receiver.alone is not None and decoder.splitter.work_size >= ALONE:
                await self._receiver.alone()
            if self._dump.packets.bytes_received == came:  # otherwise the receive has already let other tasks run
                await asyncio.sleep(0)
            receiver = self._receiver
            receiver.begin()
            # What is received rarely ends between two transactions, and only there another dump can continue.
            eager = decoder.splitter.eager = receiver.between() or self._is_join_due()
            self._feeding = True
            try:
                self._at, self._more = decoder.feed(self._data, self._at, self._stops if eager else receiver.full)
            finally:
                self._feeding = False
            if self._schemas.history.waits and decoder.statements.waiting is None:
                here = decoder.cursor.file, decoder.cursor.end
                if self._schemas.history.pass_by(here, decoder.transactions.given):
                    decoder.refresh()
        except HeadraceError as failure:
            error: HeadraceError = failure
            if isinstance(error, ServerIdTaken):
                self._dumps.disconnected()
            if isinstance(error, WrongChecksum) and self._dumps.first_damage(decoder.cursor.position):
                error = SourceEnded(f"{failure.args[0]}; it is read once more, from the source again")
            if isinstance(error, ArchiveError) and not isinstance(error, ArchiveNotKept) and self._dump.line:
                self._dumps.spare_failed(error)
                error = ContinuesElsewhere(f"{failure.args[0]}; the source has it")
            if isinstance(error, PositionLost) and self._dumps.lost(error):
                error = ContinuesElsewhere(f"{failure.args[0]}; the archive may have it")
            if isinstance(error, ContinuesElsewhere):
                self._dumps.ended(decoder.position())
            reported = (
                self._receiver.mark is not None and decoder.transactions.in_group
            )  # then the position is at the begin of the transaction, not before the failed event
            if reported or not decoder.splitter.whole:
                if error is failure:
                    raise
                raise error from failure
            self._end = error  # changes before the error are published first

    def _is_join_due(self) -> bool:
        """Returns whether it is time to look for a dump that spares the source."""
        return self._dumps.spares and self._dump.connection is not None and runtime.monotonic() >= self._join_at

    async def _joins(self) -> bool:
        """Continues with a dump that spares the source, if there is one. What was received and not decoded yet comes
        again with that."""
        decoder = self._decoder
        if not self._is_join_due() or decoder.transactions.in_group:
            return False
        self._join_at = runtime.monotonic() + _JOIN
        position = decoder.position()
        if (dump := await self._dumps.join(position, self._dump)) is None:
            return False
        await self._dump.close()
        self._begin(dump)
        self._joined = not dump.line
        return True

    def _begin(self, dump: Dump) -> None:
        """Begins with another dump."""
        self._before = self.progress()
        self._decoder.close()
        self._dump, self._decoder, self._end = dump, self._make_decoder(dump), None
        self._data, self._at, self._more = b"", 0, False

    def _stops(self) -> bool:
        return self._receiver.full() or not self._decoder.transactions.in_group

    async def _receive(self) -> None:
        packets, rest = self._dump.packets, self._data[self._at :]
        self._data, self._at = rest, 0
        self._data = await packets.read(rest, self._decoder.splitter.need, 2 * self._dump.server.settings.heartbeat + 1)
        self._dumps.ensure_usable(self._dump)
        self._bytes, self._received = self._bytes + len(self._data) - len(rest), packets.last_receive

    def rest(self) -> None:
        self._dump.packets.rest()

    def wake(self) -> None:
        self._dump.packets.wake()

    @property
    def reading(self) -> str:
        return self._decoder.cursor.position if self._feeding else ""

    def table(self, schema: str, table: str) -> TableSchema | str | None:
        history = self._schemas.history
        known = history.table(schema, table)
        if known is not None or history.knows(schema, table):
            return known
        self._asked_for_unknown = True  # the account may have the right to read it by now
        self.wake()
        return history.unknown_because(schema, table)

    def passed(self, watermark: Watermark) -> bool:
        if not watermark.gtid_set:
            return self.has_reached(LogPosition(watermark.file, watermark.offset))
        gtids = self._decoder.transactions.gtids
        return gtids is not None and not GtidSet(watermark.gtid_set).minus(gtids)

    def position(self) -> Position:
        return self._decoder.position()

    def pass_numbers(self, last_pos: int) -> bool:
        return self._decoder.transactions.pass_numbers(last_pos)

    def progress(self) -> Progress:
        decoder, before = self._decoder, self._before
        cursor, transactions = decoder.cursor, decoder.transactions
        return Progress(
            cursor.file,
            cursor.end,
            transactions.commit_time_us,
            self._received,
            before.events + decoder.splitter.events,
            before.skipped + cursor.skipped,
            before.transactions + transactions.count,
            self._bytes,
            cursor.checksums,
        )

    def in_transaction(self) -> bool:
        return self._decoder.transactions.in_group

    def silent_since(self) -> float:
        packets = self._dump.packets
        return max(packets.waiting_since, packets.last_receive) if packets.waiting_since else 0.0

    def has_reached(self, end: LogPosition) -> bool:
        return reached((self._decoder.cursor.file, self._decoder.cursor.end), end)

    def take_entries(self) -> tuple[dict[str, Any], ...]:
        return self._schemas.history.take_entries(self.position().last_pos)

    async def reopen(self) -> int:
        await self._dump.close()
        position, dump = self.position(), None
        if self._dump.line and not self._decoder.transactions.in_group:  # at the end of the archive's folder
            dump = await self._dumps.join(position, self._dump)
        joins = dump is not None and not dump.line
        if dump is None:
            dump = await self._dumps.reopen(position)
        if dump.start.position.server_uuid != position.server_uuid:
            # The destination must start again, because table schemas, heartbeats and other state belong to the former
            # server.
            await dump.close()
            raise SourceChanged(
                "another server than before answers at the source's address",
                remedy="'headrace position show DESTINATION' compares it with the position",
            )
        self._begin(dump)
        if self._joined:
            self._join_at = runtime.monotonic() + _REJOIN
        self._joined = joins
        return dump.server.settings.server_id

    async def close(self) -> None:
        self._decoder.close()
        self._schemas.history.clear()
        await self._dump.close()
