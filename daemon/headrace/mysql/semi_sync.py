"""Semi-synchronous acknowledgement of what the sink has confirmed: the source waits for it before a commit returns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headrace import tasks
from headrace.errors import SourceError
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.events.cursor import WRAP
from headrace.mysql.opening import STREAM_BUFFER
from headrace.mysql.position.inventory import identity
from headrace.mysql.replicas import Reader, choose_server_id, replica_name
from headrace.mysql.schema.states import FilePosition, reached
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.mysql.wire.stream import PacketStream
from headrace.native import find
from headrace.ports.source import Acknowledger, Confirmed
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import SourceSettings

_CHECK = 3.0
"""Seconds between two questions whether the source waits."""
_MOST = 10_000
"""Requests that are kept one by one. While the source does not wait, it may request an answer for each transaction."""


async def watch(address: SourceSettings, recorder: Recorder, note: Callable[[str], None]) -> None:
    """Notes again and again why the source does not wait for our acknowledgements; "" if it does. Returns if the dump
    must begin again, because semi-synchronous replication was installed meanwhile."""
    before: int | None = None
    """Transactions that were committed without an acknowledgement, as of the last check; None if it did not wait."""
    while True:
        await asyncio.sleep(_CHECK)
        try:
            async with await SourceConnection.open(address_of(address)) as connection:
                rows = await connection.query("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%'")
                rows += await connection.query("SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_%_enabled'")
        except SourceError:
            continue  # the dump will fail too, if this lasts
        states = {str(row["Variable_name"]).lower(): str(row["Value"]).upper() for row in rows}
        enabled, status, without = (
            [states.get(f"rpl_semi_sync_{role}_{what}") for role in ("source", "master")]
            for what in ("enabled", "status", "no_tx")
        )
        late = sum(int(count or 0) for count in without) if "ON" in status else None
        if enabled == [None, None]:
            note("semi-synchronous replication is not installed on the source")
        elif not recorder.semi_sync:
            return
        elif "ON" not in enabled:
            note("semi-synchronous replication is not enabled on the source")
        else:
            waited = late is not None and before in (late, None)
            note("" if waited else "the source has waited for longer than its timeout")
        before = late


class MysqlAcknowledger(Acknowledger):
    """See Acknowledger. It reads the binlog over a connection of its own, from the confirmed position on: the server
    takes what is before the begin of a dump for acknowledged. `serving` returns the address that the destination
    reads; `name` is the destination's."""

    def __init__(self, serving: Callable[[], SourceSettings], daemon: DaemonSettings, name: str) -> None:
        self._serving, self._node, self._reader = serving, daemon.node, f"semi-sync:{name}"
        self._native = find(daemon.native).module
        self._requested: deque[FilePosition] = deque()
        """Where events end for which the source waits."""

    async def run(self, confirmed: Confirmed, report: Callable[[str], None]) -> None:
        address = self._serving()
        self._requested.clear()
        async with await SourceConnection.open(address_of(address)) as connection:
            # Nothing is asked that may wait for a commit: that may be waiting for us.
            server = identity(await connection.load_variables(), connection.is_mariadb)
            server_id = await choose_server_id(connection, address, Reader(self._node, self._reader, derived=True))
            us = replica_name(self._node, self._reader)
            await connection.register(server_id, address.heartbeat, us, semi_sync=True)
            if _place(confirmed, server) is None:
                report("no position of this server is confirmed yet")
            while (place := _place(confirmed, server)) is None:
                confirmed.changed.clear()
                await confirmed.changed.wait()
            file, offset = place
            begin = offset if offset < WRAP else 4  # the command has 32 bits
            recorder = Recorder(
                file,
                begin,
                checksums=connection.writes_checksums,
                source=address_of(address).name,
                native=self._native,
                semi_sync=True,
                keep=False,
            )
            packets = await connection.dump(
                server_id, file=file, offset=begin, gtids=None, buffer=STREAM_BUFFER, annotations=True
            )
            try:
                await tasks.first(
                    {
                        "read": self._read(packets, recorder, 2 * address.heartbeat + 1, confirmed),
                        "acknowledge": self._acknowledge(packets, server, confirmed),
                        "watch": watch(address, recorder, report),
                    }
                )
            finally:
                await packets.close()

    async def _read(self, packets: PacketStream, recorder: Recorder, limit: float, confirmed: Confirmed) -> None:
        data = b""
        while True:
            data = await packets.read(data, recorder.need, limit)
            at = 0
            while True:
                at = recorder.feed(data, at)
                if recorder.whole:
                    recorder.take()
                if recorder.acknowledge:
                    if len(self._requested) >= _MOST:
                        self._requested.pop()  # the next one answers it too
                    self._requested.append((recorder.file, recorder.acknowledge))
                    recorder.acknowledge = 0
                    confirmed.changed.set()
                if not recorder.ended:
                    break
                recorder.begin(recorder.ended)
            data = data[at:]

    async def _acknowledge(self, packets: PacketStream, server: str, confirmed: Confirmed) -> None:
        while True:
            await confirmed.changed.wait()
            confirmed.changed.clear()
            place, last = _place(confirmed, server), None
            while place is not None and self._requested and reached(place, self._requested[0]):
                last = self._requested.popleft()
            if last is not None:
                packets.acknowledge(*last)


def _place(confirmed: Confirmed, server: str) -> FilePosition | None:
    """Returns file and offset of the confirmed position, None if it is not one of this server."""
    position = confirmed.position
    if position is None or position.server_uuid != server or not position.file:
        return None
    return position.file, position.offset
