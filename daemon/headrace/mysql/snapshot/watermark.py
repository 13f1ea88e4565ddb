"""headrace's own table for reading tables without GTIDs: a row a destination, which is only ever written."""

from __future__ import annotations

from headrace.errors import GrantMissing, SourceError
from headrace.mysql import heartbeat
from headrace.mysql.heartbeat import NO_DATABASE, NO_TABLE, WATERMARK_SQL
from headrace.mysql.wire.connection import QueryFailed, SourceConnection

_NO_COLUMN = 1054
_WRITE = (
    "INSERT INTO headrace.watermark (destination, number) VALUES (%s, 1) ON DUPLICATE KEY UPDATE number = number + 1"
)


async def write_watermark(connection: SourceConnection, destination: str, user: str) -> None:
    """Commits a change of the destination's row, and makes the table when it is missing. Raises GrantMissing when the
    account may not, SourceError when the table is another one, and other SourceErrors."""
    try:
        try:
            await connection.change(_WRITE, (destination,))
            return
        except QueryFailed as error:
            if error.errno not in (NO_DATABASE, NO_TABLE):
                raise
        for statement in WATERMARK_SQL:
            await connection.query(statement)
        await connection.change(_WRITE, (destination,))
    except GrantMissing as error:
        raise GrantMissing(
            f"tables are read behind a row that our account may not write in headrace.watermark: {error.args[0]}",
            remedy=heartbeat.setup_sql(f"'{user}'@'%'", WATERMARK_SQL),
        ) from error
    except QueryFailed as error:
        if error.errno != _NO_COLUMN:
            raise
        raise SourceError(
            "the table headrace.watermark is another one than headrace makes",
            remedy="DROP TABLE headrace.watermark; headrace makes it anew when it may",
        ) from error
