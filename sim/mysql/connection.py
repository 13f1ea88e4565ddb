"""One connection: greeting, login and commands (MySQL source code documentation, "Connection Phase" and "Command
Phase": Protocol::HandshakeV10, HandshakeResponse41, COM_*)."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from sim.mysql import wire
from sim.mysql.accounts import SHA2
from sim.mysql.dump import Dump
from sim.mysql.errors import Locked, ServerDown, SqlError, denied
from sim.mysql.gtids import Gtids
from sim.mysql.result import Result
from sim.mysql.session import Session

if TYPE_CHECKING:
    from sim.mysql.server import Server

_WITH_SCHEMA, _LENGTHS, _PLUGIN, _NO_EOF = 1 << 3, 1 << 21, 1 << 19, 1 << 24
_CAPABILITIES = 0xFFFFFFFF & ~sum(1 << bit for bit in (5, 11, 14, 26, 27, 28, 29, 30))
"""All but compression, TLS, a reserved bit, and query attributes and what came after them, which the model lacks."""
_QUIT, _INIT_DB, _QUERY, _PING, _DUMP, _REGISTER, _DUMP_GTID, _RESET = 1, 2, 3, 14, 18, 21, 30, 31
_UTF8 = 255


class Connection(asyncio.Protocol):
    """A connection to the model. Its faults: cut()."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.session: Session | None = None
        self.dump: Dump | None = None
        self.host = "localhost"
        self._transport: Any = None
        self._data = bytearray()
        self._nonce = b""
        self._plugin = ""
        self._user = ""
        self._capabilities = 0
        self._sequence = 0
        self._waiting: deque[tuple[int, bytes]] = deque()
        """Packets that came while an answer was delayed."""
        self._delayed: asyncio.TimerHandle | None = None
        self._cut_after: int | None = None
        self._lock_wait: asyncio.TimerHandle | None = None

    # -- the transport ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        server, self._transport = self.server, transport
        if not server.running:
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self.host = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else "localhost"
        server.connections.append(self)
        if server.refuse is not None:
            self._send(wire.error(server.refuse, early=True))
            self.close()
            return
        self.thread = server.next_thread()
        self._plugin = server.auth_plugin
        self._nonce = bytes(server.rng.randrange(1, 128) for _ in range(20))
        self._send(self._greeting())

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.server.connections:
            self.server.connections.remove(self)
        for timer in (self._delayed, self._lock_wait):
            if timer is not None:
                timer.cancel()
        if self.dump is not None:
            self.dump.close()
        if self.session is not None:
            self.server.unregister(self.session.thread)
            self.session.close()

    def pause_writing(self) -> None:
        if self.dump is not None:
            self.dump.paused = True

    def resume_writing(self) -> None:
        if self.dump is not None:
            self.dump.resume()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 4:
            size, at, payload = int.from_bytes(self._data[:3], "little"), 4, b""
            while size == wire.LARGEST and len(self._data) >= at + size + 4:
                payload += self._data[at : at + size]
                at += size + 4
                size = int.from_bytes(self._data[at - 4 : at - 1], "little")
            if size == wire.LARGEST or len(self._data) < at + size:
                return
            sequence = self._data[at - 1]
            payload += self._data[at : at + size]
            del self._data[: at + size]
            self._waiting.append((sequence, payload))
            self._next()

    def _next(self) -> None:
        """Takes the next packet, after the server's delay."""
        if self._delayed is not None or self._lock_wait is not None or not self._waiting:
            return
        delay = self.server.delay() if self.session is not None else 0.0
        if delay > 0:
            self._delayed = asyncio.get_running_loop().call_later(delay, self._take)
        else:
            self._take()

    def _take(self) -> None:
        self._delayed = None
        if not self._waiting or self._transport.is_closing():
            return
        sequence, payload = self._waiting.popleft()
        self._sequence = sequence + 1
        if self.session is None:
            self._on_login(payload)
        elif self.dump is None:
            self._on_command(payload)
        self._next()

    def cut(self, after: int) -> None:
        """Resets the connection once that many more bytes were sent, wherever in a packet that is."""
        self._cut_after = after

    def write(self, data: bytes) -> None:
        """Sends bytes, up to where the connection is to be cut."""
        if self._transport.is_closing():
            return
        if self._cut_after is not None:
            if len(data) >= self._cut_after:
                self._transport.write(data[: self._cut_after])
                self._cut_after = None
                # what was written is sent; then the connection ends without a word
                asyncio.get_running_loop().call_soon(self._transport.close)
                if self.dump is not None:
                    self.dump.close()
                return
            self._cut_after -= len(data)
        self._transport.write(data)

    def _send(self, *payloads: bytes) -> None:
        parts = []
        for payload in payloads:
            packets, self._sequence = wire.framed(payload, self._sequence)
            parts.append(packets)
        self.write(b"".join(parts))

    def close(self) -> None:
        """Closes after what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Resets the connection."""
        if self._transport is not None:
            self._transport.abort()

    # -- login --------------------------------------------------------------------------------------------------------

    def _greeting(self) -> bytes:
        low, high = _CAPABILITIES & 0xFFFF, _CAPABILITIES >> 16
        head = b"\x0a" + self.server.version.encode() + b"\0" + struct.pack("<I", self.thread) + self._nonce[:8] + b"\0"
        facts = struct.pack("<HBHHB", low, _UTF8, wire.AUTOCOMMIT, high, 21)
        return head + facts + bytes(10) + self._nonce[8:] + b"\0" + self._plugin.encode() + b"\0"

    def _on_login(self, payload: bytes) -> None:
        if self._user:  # the answer to a switch of the plugin
            self._prove(payload)
            return
        (self._capabilities,) = struct.unpack_from("<I", payload)
        at = 32
        end = payload.index(0, at)
        self._user, at = payload[at:end].decode(), end + 1
        size, at = wire.read_number(payload, at) if self._capabilities & _LENGTHS else (payload[at], at + 1)
        proof, at = payload[at : at + size], at + size
        self._schema = ""
        if self._capabilities & _WITH_SCHEMA:
            end = payload.index(0, at)
            self._schema, at = payload[at:end].decode(), end + 1
        plugin = payload[at : payload.index(0, at)].decode() if self._capabilities & _PLUGIN else ""
        if plugin and plugin != self._plugin:
            self._send(b"\xfe" + self._plugin.encode() + b"\0" + self._nonce + b"\0")
            return
        self._prove(proof)

    def _prove(self, proof: bytes) -> None:
        account = self.server.accounts.get(self._user)
        if account is None or not account.accepts(self._plugin, self._nonce, proof):
            host, used = self.host.partition(":")[0], "YES" if proof else "NO"
            who = f"'{self._user}'@'{host}'"
            self._send(wire.error(SqlError(1045, f"Access denied for user {who} (using password: {used})")))
            self.close()
            return
        self.session = Session(self.server, self.thread, account, self.host.partition(":")[0])
        self.server.sessions[self.thread] = self.session
        if self._schema:
            try:
                self.session.use(self._schema)
            except SqlError as error:
                self._send(wire.error(error))
                self.close()
                return
        if self._plugin == SHA2 and proof:
            self._send(b"\x01\x03", wire.ok())  # the proof was enough: no full authentication
        else:
            self._send(wire.ok())

    # -- commands -----------------------------------------------------------------------------------------------------

    @property
    def _status(self) -> int:
        session = self.session
        assert session is not None
        found = wire.AUTOCOMMIT if session.setting("autocommit") else 0
        return found | (wire.IN_TRANSACTION if session.transaction is not None else 0)

    def _on_command(self, payload: bytes) -> None:
        session, command, body = self.session, payload[0], payload[1:]
        assert session is not None
        try:
            if command == _QUERY:
                self._query(body.decode("utf-8", "surrogateescape"))
            elif command == _PING:
                self._send(wire.ok(status=self._status))
            elif command == _INIT_DB:
                session.use(body.decode())
                self._send(wire.ok(status=self._status))
            elif command == _QUIT:
                self.close()
            elif command == _REGISTER:
                self._register(session, body)
            elif command in (_DUMP, _DUMP_GTID):
                self._begin_dump(session, command, body)
            elif command == _RESET:
                session.rollback()
                session.settings.clear()
                session.user_variables.clear()
                self._send(wire.ok(status=self._status))
            else:
                self.server.unknown.append(f"command {command}")
                self._send(wire.error(SqlError(1047, "Unknown command")))
        except SqlError as error:
            self._send(wire.error(error))
        except ServerDown:
            self.abort()

    def _query(self, sql: str) -> None:
        """Runs a statement; one that meets a lock waits for it, as long as innodb_lock_wait_timeout says."""
        assert self.session is not None
        try:
            result = self.session.execute(sql)
        except Locked as error:
            limit = float(self.session.setting("innodb_lock_wait_timeout"))
            self._lock_wait = asyncio.get_running_loop().call_later(limit, self._end_wait, error)
            self._wait_for_lock(sql, self._lock_wait)
        else:
            self._answer_with(result)

    def _wait_for_lock(self, sql: str, wait: asyncio.TimerHandle) -> None:
        self.server.engine.waiters.append(lambda: self._again(sql, wait))

    def _again(self, sql: str, wait: asyncio.TimerHandle) -> None:
        """Tries a statement again: a lock was released."""
        session = self.session
        if self._lock_wait is not wait or session is None or not session.alive:
            return
        try:
            result = session.execute(sql)
        except Locked:
            self._wait_for_lock(sql, wait)
        except SqlError as error:
            self._end_wait(error)
        except ServerDown:
            self.abort()
        else:
            self._end_wait(result)

    def _end_wait(self, outcome: Result | SqlError) -> None:
        """Answers the statement that has waited."""
        if self._lock_wait is not None:
            self._lock_wait.cancel()
            self._lock_wait = None
        if isinstance(outcome, Result):
            self._answer_with(outcome)
        else:
            self._send(wire.error(outcome))
        self._next()

    def _answer_with(self, result: Result) -> None:
        if not result.columns:
            self._send(wire.ok(result.affected, result.insert_id, self._status))
            return
        head = [wire.number(len(result.columns)), *(column.packet for column in result.columns)]
        if self._capabilities & _NO_EOF:
            end = b"\xfe" + wire.ok(status=self._status)[1:]
            self._send(*head, *result.packets(), end)
        else:
            end = wire.eof(self._status)
            self._send(*head, end, *result.packets(), end)

    def _register(self, session: Session, body: bytes) -> None:
        if not session.allows("REPLICATION SLAVE"):
            raise denied("REPLICATION SLAVE")
        (server_id,) = struct.unpack_from("<I", body)
        at, texts = 4, []
        for _ in range(3):  # host, user, password
            size = body[at]
            texts.append(body[at + 1 : at + 1 + size].decode())
            at += 1 + size
        (port,) = struct.unpack_from("<H", body, at)
        self.server.register(session, server_id, texts[0], port)
        self._send(wire.ok(status=self._status))

    def _begin_dump(self, session: Session, command: int, body: bytes) -> None:
        if not session.allows("REPLICATION SLAVE"):
            raise denied("REPLICATION SLAVE")
        gtids: Gtids | None = None
        if command == _DUMP:
            offset, _, server_id = struct.unpack_from("<IHI", body)
            name = body[10:].decode()
        else:
            _, server_id, size = struct.unpack_from("<HII", body)
            name = body[10 : 10 + size].decode()
            offset, length = struct.unpack_from("<QI", body, 10 + size)
            gtids = Gtids.decode(body[22 + size : 22 + size + length])
        variables = session.user_variables
        uuid = str(variables.get("replica_uuid") or variables.get("slave_uuid") or "")
        period = variables.get("source_heartbeat_period", variables.get("master_heartbeat_period", 0)) or 0
        session.command = "Binlog Dump GTID" if gtids is not None else "Binlog Dump"
        self.server.end_dumps_of(uuid, server_id)
        self.dump = Dump(self.server, server_id, uuid, int(period) / 1e9, gtids, self.write, self.close)
        self.dump.start(name, offset)
