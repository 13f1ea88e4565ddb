"""Writes a position as another program's cursor, after checking that the source is the position's server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.errors import Refusal
from headrace.model import Position
from headrace.moving.cursors import made_canal_cursor, made_debezium_offset
from headrace.mysql.position.inventory import identity
from headrace.mysql.source import addresses
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.destination import SourceSettings


async def as_canal_cursor(position: Position, source: SourceSettings) -> dict[str, Any]:
    """Returns Canal's cursor, JSON types only. Raises Refusal, or SourceError."""
    server_id, _ = await _server_of(position, source)
    return made_canal_cursor(position, (source.host, source.port), server_id)


async def as_debezium_offset(position: Position, source: SourceSettings) -> dict[str, Any]:
    """Returns Debezium's offset, JSON types only. Raises Refusal, or SourceError."""
    server_id, gtids = await _server_of(position, source)
    return made_debezium_offset(replace(position, gtid_set=gtids), server_id)


async def _server_of(position: Position, source: SourceSettings) -> tuple[int, str]:
    """Returns the server id of the source at its first address, which the other program reads, and what was executed
    before the position: MariaDB's connector does not start without that."""
    first = addresses(source)[0]
    async with await SourceConnection.open(address_of(first)) as connection:
        variables = await connection.load_variables()
        server = identity(variables, connection.is_mariadb)
        if server != position.server_uuid:
            raise Refusal(
                f"the position is one of the server {position.server_uuid}, and {first.host}:{first.port} is {server}",
                remedy="have [source] host name the server that was read last",
            )
        gtids = position.gtid_set
        if connection.is_mariadb and position.file:
            rows = await connection.query(f"SELECT BINLOG_GTID_POS('{position.file}', {position.offset}) AS g")
            gtids = str(rows[0]["g"] or "")
    return int(variables.get("server_id", "0")), gtids
