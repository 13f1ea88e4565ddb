"""headrace's own table on the source: a row for each destination, which its daemon writes and reads again in the
binlog."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import SourceError
from headrace.model import Column, TableSchema
from headrace.mysql.wire.connection import SourceConnection
from headrace.ports.source import Heartbeat

SCHEMA = "headrace"
"""Everything in it is headrace's own and never published."""
TABLE = "heartbeat"
CREATE_SQL = (
    "CREATE DATABASE IF NOT EXISTS headrace",
    "CREATE TABLE IF NOT EXISTS headrace.heartbeat (destination VARCHAR(190) NOT NULL PRIMARY KEY,"
    " epoch BIGINT UNSIGNED NOT NULL, node VARCHAR(190) NOT NULL, sequence BIGINT UNSIGNED NOT NULL,"
    " beat_us BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB CHARACTER SET utf8mb4",
)
"""Creates the table."""
WATERMARK_SQL = (
    CREATE_SQL[0],
    "CREATE TABLE IF NOT EXISTS headrace.watermark (destination VARCHAR(190) NOT NULL PRIMARY KEY,"
    " number BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB CHARACTER SET utf8mb4",
)
"""Creates the table whose rows serve as watermarks for reading tables without GTIDs."""
NO_DATABASE, NO_TABLE = 1049, 1146
"""A server's errors for a table that does not exist yet."""

TABLE_SCHEMA = TableSchema(
    SCHEMA,
    TABLE,
    (
        Column("destination", "varchar(190)", 12, nullable=False, charset="utf8mb4", length=190),
        Column("epoch", "bigint unsigned", -5, unsigned=True, nullable=False),
        Column("node", "varchar(190)", 12, nullable=False, charset="utf8mb4", length=190),
        Column("sequence", "bigint unsigned", -5, unsigned=True, nullable=False),
        Column("beat_us", "bigint unsigned", -5, unsigned=True, nullable=False),
    ),
    (0,),
)
"""The columns, known without any metadata in the binlog."""


SIGNAL_TABLE = "signal"
CREATE_SIGNAL_SQL = (
    "CREATE TABLE IF NOT EXISTS headrace.signal (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,"
    " destination VARCHAR(190) NOT NULL, command VARCHAR(32) NOT NULL, arguments VARCHAR(10000))"
    " ENGINE=InnoDB CHARACTER SET utf8mb4"
)
"""Creates the table in which operators write commands. Rows stay."""
SIGNAL_SCHEMA = TableSchema(
    SCHEMA,
    SIGNAL_TABLE,
    (
        Column("id", "bigint unsigned", -5, unsigned=True, nullable=False),
        Column("destination", "varchar(190)", 12, nullable=False, charset="utf8mb4", length=190),
        Column("command", "varchar(32)", 12, nullable=False, charset="utf8mb4", length=32),
        Column("arguments", "varchar(10000)", 12, charset="utf8mb4", length=10000),
    ),
    (0,),
)


def setup_statements(account: str, statements: Sequence[str] = CREATE_SQL) -> tuple[str, ...]:
    """Returns the statements that an administrator must run to create the tables of `statements` and let the account
    write them."""
    made = (f"{statement};" for statement in statements)
    return (*made, f"GRANT SELECT, INSERT, UPDATE, CREATE ON headrace.* TO {account};")


def setup_sql(account: str, statements: Sequence[str] = CREATE_SQL) -> str:
    """Returns the same as one text."""
    return " ".join(setup_statements(account, statements))


async def read_heartbeat(connection: SourceConnection, destination: str) -> Heartbeat | None:
    """Returns the stored row; None if there is none. Raises SourceError, also if the table does not exist."""
    columns = "destination, epoch, node, sequence, beat_us"
    rows = await connection.query(f"SELECT {columns} FROM headrace.heartbeat WHERE destination = '{destination}'")
    try:
        return Heartbeat.of(tuple(rows[0].values())) if rows else None
    except (TypeError, ValueError) as error:
        raise SourceError(
            "the table headrace.heartbeat is another one than headrace makes",
            remedy="DROP TABLE headrace.heartbeat; headrace makes it again when it may",
        ) from error


async def write_heartbeat(connection: SourceConnection, heartbeat: Heartbeat) -> Heartbeat | None:
    """Writes the row unless the stored one has a higher epoch, which is returned. Raises SourceError.

    A single statement compares and writes, so that a daemon that lost its destination can't overwrite its successor's
    row."""
    # Hex, because a node's name may be any text.
    node = f"_utf8mb4 x'{heartbeat.node[:190].encode().hex()}'"
    await connection.query(
        f"UPDATE headrace.heartbeat SET epoch = {heartbeat.epoch}, node = {node}, sequence = {heartbeat.sequence},"
        f" beat_us = {heartbeat.written_us}"
        f" WHERE destination = '{heartbeat.destination}' AND epoch <= {heartbeat.epoch}"
    )
    if int((await connection.query("SELECT ROW_COUNT() AS n"))[0]["n"]):
        return None
    await connection.query(
        "INSERT IGNORE INTO headrace.heartbeat (destination, epoch, node, sequence, beat_us) VALUES"
        f" ('{heartbeat.destination}', {heartbeat.epoch}, {node}, {heartbeat.sequence}, {heartbeat.written_us})"
    )
    stored = await read_heartbeat(connection, heartbeat.destination)
    return stored if stored is not None and stored.epoch > heartbeat.epoch else None
