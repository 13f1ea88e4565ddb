"""Connections to MySQL and MariaDB: aiomysql authenticates, then our own buffered protocol takes the transport."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiomysql
import pymysql.err

from headrace.errors import BinlogOff, SourceError, SourceMisconfigured, SourceUnreachable
from headrace.model import Position
from headrace.mysql.wire.aiomysql_internals import (
    AnswerTooLarge,
    LoginRefused,
    connect,
    has_unread,
    run_command,
    transport_of,
)
from headrace.mysql.wire.dump_errors import BINLOG_ON, query_error
from headrace.mysql.wire.sockets import tune
from headrace.mysql.wire.stream import ArchivedDump, PacketStream
from headrace.settings.destination import SourceSettings
from headrace.tls import client_context
from headrace_common.section import TlsFiles
from headrace_common.tls import tls_by_host

_COM_BINLOG_DUMP, _COM_REGISTER_REPLICA, _COM_BINLOG_DUMP_GTID = 0x12, 0x15, 0x1E
_SEND_ANNOTATIONS = 2
NOT_KNOWN = 1064
"""The errno for a statement that the server does not know."""
SHORT_HEARTBEAT = 1.0
"""Seconds between the heartbeats of a short dump."""
_SHORT_BUFFER = 1 << 20
_TOGETHER = 100
"""Rows that are fetched before their size is checked."""
_OBJECTS = 4
"""How many times its bytes an answer may take in memory."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address and credentials of a source. `tls` is verified, required, preferred or disabled, or None: by the
    host; times in seconds."""

    host: str
    port: int
    user: str
    password: str
    tls: str | None = None
    tls_files: TlsFiles = (None, None, None)
    """CA, certificate and key."""
    connect_timeout: float = 10.0
    answer_bytes: int = 64 << 20
    """Maximum bytes of one answer: as received, and four times as many as its rows take in memory."""

    @property
    def name(self) -> str:
        """Returns the name as shown."""
        return f"{self.host}:{self.port}"

    @property
    def security(self) -> str:
        """Returns `tls`, with None resolved."""
        return tls_by_host(self.tls, self.host)


def address_of(source: SourceSettings) -> Address:
    """Returns the settings in the form for connections."""
    return Address(
        host=source.host,
        port=source.port,
        user=source.user,
        password=source.password.get_secret_value(),
        tls=source.tls,
        tls_files=source.tls_files,
        connect_timeout=source.connect_timeout,
    )


@dataclass(frozen=True, slots=True)
class ReplicaName:
    """What a replica reports of itself when it registers. `host` has at most 60 bytes, `port` 16 bits. MySQL uses
    `uuid` if one is sent: of two with the same one it ends the older, and a server id alone is no clash then."""

    host: str
    port: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Server:
    """The facts of a source that reading its binlog depends on. `settings` name the server that answers, and the server
    id under which it knows us."""

    settings: SourceSettings
    version: str
    mariadb: bool
    gtid_mode: bool
    lower_case_table_names: int
    rows_bring_names: bool = False
    """Whether it writes column names to the binlog now (binlog_row_metadata = FULL)."""
    archived: Callable[[Position], Awaitable[ArchivedDump | None]] | None = None
    """Returns a dump that begins at a position in the archive; None if that has none."""
    shows_tables: bool = True
    """Whether its tables can be compared with what is read: not while another server's archived binlog is read."""


class SourceConnection:
    """One authenticated connection: a few queries, then optionally a binlog dump, never both at once. As a context it
    is closed at the end."""

    def __init__(self, connection: Any, address: Address) -> None:
        self._connection = connection
        self._address = address
        self.variables: dict[str, str] = {}

    async def __aenter__(self) -> SourceConnection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @classmethod
    async def open(cls, address: Address) -> SourceConnection:
        """Connects and authenticates. Raises SourceError, or SourceMisconfigured for a refused account."""
        try:
            return await cls._open(address, _tls_context(address))
        except pymysql.err.OperationalError as error:
            raise _refused(address, error) from error
        except LoginRefused as error:
            where = f"MySQL at {address.host}:{address.port}"
            raise SourceMisconfigured(f"{where}: {error}", remedy=error.remedy) from error

    @classmethod
    async def _open(cls, address: Address, context: ssl.SSLContext | None) -> SourceConnection:
        try:
            async with asyncio.timeout(address.connect_timeout):
                connection = await connect(
                    tls_required=address.security in ("required", "verified"),
                    answer_bytes=address.answer_bytes,
                    host=address.host,
                    port=address.port,
                    user=address.user,
                    # The client encodes it in latin1, which is wrong for every server: it takes the bytes unchanged.
                    password=address.password.encode("utf-8", "surrogateescape").decode("latin-1"),
                    charset="utf8mb4",
                    autocommit=True,
                    ssl=context,
                    connect_timeout=address.connect_timeout,
                    program_name="headrace",
                )
        except AnswerTooLarge as error:
            raise SourceError(f"{address.host}:{address.port} answers a login without end") from error
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ssl.SSLError) as error:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            if isinstance(error, TimeoutError):
                what = f"no answer within {address.connect_timeout:g} s"
            raise SourceUnreachable(f"MySQL at {address.host}:{address.port} can't be reached ({what})") from error
        except pymysql.err.OperationalError:
            raise
        except (pymysql.err.MySQLError, RuntimeError, struct.error, IndexError) as error:
            raise SourceError(f"{address.host}:{address.port} does not answer as a MySQL server ({error})") from error
        transport = transport_of(connection)
        assert transport is not None
        tune(transport)
        return cls(connection, address)

    async def query(self, sql: str) -> list[dict[str, Any]]:
        """Returns the rows of one statement as dicts. Raises QueryFailed or another SourceError, also after
        connect_timeout seconds."""
        return (await self._run(sql, (), aiomysql.SSDictCursor))[0]

    async def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Returns the rows of one statement, in which each %s is replaced by a value. Raises as query()."""
        return (await self._run(sql, values, aiomysql.SSCursor))[0]

    async def change(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Returns how many rows a statement has changed. Raises as query()."""
        return (await self._run(sql, values, aiomysql.SSCursor))[1]

    async def _run(self, sql: str, values: Sequence[Any], kind: type[aiomysql.SSCursor]) -> tuple[list[Any], int]:
        rows, size = list[Any](), 0
        name, what = self._address.name, f"'{sql[:60]}'"
        async with self._asking(f"{what} failed at {name}", f"{name} did not answer {what}"):
            cursor = await self._connection.cursor(kind)  # only closed below: it would read an answer to its end
            count = await cursor.execute(sql % tuple(map(self._literal, values)) if values else sql)
            while some := await cursor.fetchmany(_TOGETHER):
                size += sum(map(_memory_of, some))
                if size > _OBJECTS * self._address.answer_bytes:
                    raise AnswerTooLarge
                rows += some
            await cursor.close()
        return rows, int(count)

    @contextlib.asynccontextmanager
    async def _asking(self, failed: str, silent: str) -> AsyncIterator[None]:
        """Applies the time limits, and raises errors of the server and missing answers in our words. After a missing or
        too large answer the connection can't be used any more."""
        try:
            async with asyncio.timeout(self._address.connect_timeout):
                yield
        except pymysql.err.MySQLError as error:
            raise _failed(failed, error, self._address.user) from error
        except AnswerTooLarge as error:
            self._abort()
            limit = f"{self._address.answer_bytes >> 20} MiB"
            raise SourceError(f"{failed}: the answer has more than {limit}") from error
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            self._abort()
            raise SourceUnreachable(silent) from error

    def _abort(self) -> None:
        transport = transport_of(self._connection)
        if transport is not None:
            transport.abort()

    def _literal(self, value: Any) -> str:
        """Returns a literal: aiomysql 0.3 can't write bytes."""
        return f"x'{value.hex()}'" if isinstance(value, bytes) else str(self._connection.escape(value))

    @property
    def thread(self) -> int:
        """Returns the server's number of the session, for KILL."""
        return int(self._connection.thread_id())

    async def limit_waits(self, seconds: int, *more: str) -> None:
        """Limits the seconds that the session waits for locks, and turns off its notes; `more` are further settings.
        Call load_variables() first. Raises as query()."""
        waits = f"innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"
        # what MariaDB 11.8 warns about has a replacement there
        notes = "note_verbosity = ''" if "note_verbosity" in self.variables else "sql_notes = 0"
        await self.query(f"SET SESSION {', '.join((waits, notes, *more))}")

    async def binlog_end(self) -> tuple[str, int, str]:
        """Returns file, offset and executed GTIDs at the end of the server's binlog; the statement's name changed in
        MySQL 8.2 and is the old one in MariaDB."""
        rows = await query_known(self, "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
        if not rows:
            text = f"the source at {self._address.name} does not say where its binlog ends: it writes none"
            raise BinlogOff(text, remedy=BINLOG_ON)
        gtids = str(rows[0].get("Executed_Gtid_Set") or "").replace("\n", "")
        return str(rows[0]["File"]), int(str(rows[0]["Position"])), gtids

    async def load_variables(self, names: Sequence[str] = ()) -> dict[str, str]:
        """Returns the server's global variables, all names in lower case; only `names` if given, for frequent checks:
        there are more than 600."""
        only = f" WHERE Variable_name IN ({', '.join(map(self._literal, names))})" if names else ""
        rows = await self.query(f"SHOW GLOBAL VARIABLES{only}")
        self.variables = {str(r["Variable_name"]).lower(): str(r["Value"]) for r in rows}
        return self.variables

    @property
    def is_mariadb(self) -> bool:
        """Returns whether MariaDB answers; known after load_variables."""
        return "mariadb" in self.variables.get("version", "").lower()

    @property
    def has_gtids(self) -> bool:
        """Returns whether transactions have MySQL's GTIDs; known after load_variables."""
        return not self.is_mariadb and self.variables.get("gtid_mode", "OFF").upper() in ("ON", "ON_PERMISSIVE")

    @property
    def rows_bring_names(self) -> bool:
        """Returns whether rows are written with their columns' names; known after load_variables."""
        return self.variables.get("binlog_row_metadata", "").upper() == "FULL"

    @property
    def writes_checksums(self) -> bool:
        """Returns whether the source's events end in a CRC32; known after load_variables."""
        return self.variables.get("binlog_checksum", "NONE").upper() == "CRC32"

    async def register(
        self, server_id: int, heartbeat: float, name: ReplicaName | None = None, *, semi_sync: bool = False
    ) -> None:
        """Makes the session a replica's: checksums as written, heartbeats, long writes, and our name for SHOW REPLICAS
        (MySQL internals manual, "COM_REGISTER_SLAVE"). `heartbeat` is in seconds. Without a name, for short dumps, only
        the server id is sent. With `semi_sync` the source may wait for our acknowledgements."""
        period = int(heartbeat * 1_000_000_000)
        uuid = f", @slave_uuid='{name.uuid}', @replica_uuid='{name.uuid}'" if name else ""
        waits = ", @rpl_semi_sync_slave=1, @rpl_semi_sync_replica=1" if semi_sync else ""
        await self.query(
            "SET @master_binlog_checksum=@@global.binlog_checksum, @source_binlog_checksum=@@global.binlog_checksum,"
            f" @master_heartbeat_period={period}, @source_heartbeat_period={period}, @mariadb_slave_capability=4,"
            f" SESSION net_write_timeout=600{uuid}{waits}"
        )
        host = name.host.encode() if name else b""
        port = name.port if name else 0
        body = struct.pack("<IB", server_id, len(host)) + host + b"\0\0" + struct.pack("<HII", port, 0, 0)
        at = f"the source at {self._address.name}"
        async with self._asking(f"{at} refuses a replica", f"{at} did not answer the registration of our replica"):
            await run_command(self._connection, _COM_REGISTER_REPLICA, body)

    async def dump(
        self,
        server_id: int,
        *,
        file: str,
        offset: int,
        gtids: bytes | None,
        buffer: int,
        annotations: bool = False,
    ) -> PacketStream:
        """Turns the connection into a binlog stream: by GTID if a packed set is given, else by file and offset.

        `annotations` requests the texts of statements from MariaDB. `buffer` is the maximum of bytes that are received
        and not yet taken."""
        stream, transport = self.take_over(buffer)
        name = file.encode()
        flags = _SEND_ANNOTATIONS if annotations and self.is_mariadb else 0
        if gtids is None:
            command = struct.pack("<BIHI", _COM_BINLOG_DUMP, offset, flags, server_id) + name
        else:
            head = struct.pack("<BHII", _COM_BINLOG_DUMP_GTID, 4, server_id, 0)  # 4: through GTID
            command = head + struct.pack("<QI", 4, len(gtids)) + gtids
        transport.write(len(command).to_bytes(3, "little") + b"\0" + command)
        transport.resume_reading()
        return stream

    def take_over(self, buffer: int) -> tuple[PacketStream, Any]:
        """Returns the receiver of everything from here on, with the transport, which does not read yet: no query may
        follow. The stream keeps the connection object, because a dropped StreamWriter closes its transport. Raises
        SourceError."""
        connection = self._connection
        transport = transport_of(connection)
        if transport is None:
            raise SourceError(f"the connection to {self._address.name} was closed before its bytes could be taken")
        if has_unread(connection):
            raise SourceError(f"the source at {self._address.name} sent more than it was asked")
        transport.pause_reading()
        stream = PacketStream(asyncio.get_running_loop(), transport, buffer, self._address.name, keep=connection)
        transport.set_protocol(stream)
        return stream, transport

    async def close(self) -> None:
        """Closes the connection in order, within a second."""
        transport = transport_of(self._connection)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                await self._connection.ensure_closed()
        self._connection.close()
        if transport is not None:  # TLS would wait for the server's close message, possibly beyond the end of the loop
            transport.abort()
            await asyncio.sleep(0)  # the transport closes its socket in the next turn of the loop


@contextlib.asynccontextmanager
async def short_dump(
    source: SourceSettings,
    server_id: int,
    file: str,
    offset: int = 4,
    *,
    gtids: bytes | None = None,
    annotations: bool = False,
) -> AsyncIterator[tuple[PacketStream, SourceConnection]]:
    """Yields a short dump, separate from the destination's own; see SourceConnection.dump. Raises SourceError."""
    async with await SourceConnection.open(address_of(source)) as connection:
        await connection.load_variables()
        await connection.register(server_id, SHORT_HEARTBEAT)
        stream = await connection.dump(
            server_id, file=file, offset=offset, gtids=gtids, buffer=_SHORT_BUFFER, annotations=annotations
        )
        try:
            yield stream, connection
        finally:
            await stream.close()


def _memory_of(row: tuple[Any, ...] | dict[str, Any]) -> int:
    """Returns about how many bytes a row of an answer takes."""
    values = row.values() if isinstance(row, dict) else row
    return 300 + sum(100 + (len(value) if isinstance(value, str | bytes) else 0) for value in values)


def probe_id(server_id: int) -> int:
    """Returns a server id for a short dump during the destination's own: the server would end the older of two with one
    id."""
    return (server_id ^ 0x40000000) & 0xFFFFFFFF


class QueryFailed(SourceError):
    """The server refused a statement; `errno` is MySQL's number."""

    errno = 0


async def query_known(connection: SourceConnection, *statements: str) -> list[dict[str, Any]]:
    """Returns the rows of the first of these statements that the server knows: names change between versions. Raises as
    SourceConnection.query()."""
    for sql in statements[:-1]:
        try:
            return await connection.query(sql)
        except QueryFailed as error:
            if error.errno != NOT_KNOWN:
                raise
    return await connection.query(statements[-1])


def _failed(what: str, error: Exception, user: str) -> SourceError:
    """Returns the error for a refused statement or login, in the most specific class."""
    errno = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[-1]) if error.args else type(error).__name__
    # InterfaceError is the client's own: its connection is gone
    if isinstance(error, pymysql.err.InterfaceError) and query_error(errno, text, what, user) is None:
        return SourceUnreachable(f"{what}: {text}")
    return refusal(errno, text, what, user)


def refusal(errno: int, text: str, what: str, user: str) -> SourceError:
    """Returns the error for a statement, `what` in words, that the server has refused with this number and text."""
    if (named := query_error(errno, text, what, user)) is not None:
        return named
    made = QueryFailed(f"{what}: {text} (errno {errno})")
    made.errno = errno
    return made


def _tls_context(address: Address) -> ssl.SSLContext | None:
    """Returns the TLS settings: if no check is requested, and no CA is given, the traffic is only encrypted."""
    if address.security == "disabled":
        return None
    owner = f"MySQL at {address.host}:{address.port}"
    verify = address.security == "verified" or bool(address.tls_files[0])
    return client_context(owner, SourceMisconfigured, *address.tls_files, verify=verify)


def _refused(address: Address, error: pymysql.err.OperationalError) -> SourceError:
    where = f"{address.host}:{address.port}"
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return _not_trusted(address, error.__cause__)
    named = _failed(f"MySQL at {where} refuses user '{address.user}'", error, address.user)
    if isinstance(named, SourceMisconfigured):
        return named
    errno = error.args[0] if error.args else 0
    return SourceUnreachable(f"MySQL at {where} can't be reached: {error.args[-1]} (errno {errno})")


def _not_trusted(address: Address, error: ssl.SSLCertVerificationError) -> SourceError:
    """Returns the error for an untrusted certificate. Neither the account nor its password was sent."""
    fixes = 'set tls_ca = "..." to the CA that signed it (MySQL keeps its own, ca.pem, in its data directory)'
    if address.tls_files[0]:
        fixes = "give the server a certificate by the CA of tls_ca"
    return SourceMisconfigured(
        f"the certificate of MySQL at {address.host}:{address.port} is not trusted: {error.verify_message.rstrip('.')}",
        remedy=f"{fixes}, and made for {address.host} (those that MySQL makes by itself name no host); or set "
        'tls = "required" without tls_ca, which encrypts and does not check; or tls = "disabled"',
    )
