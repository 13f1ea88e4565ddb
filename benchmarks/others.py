"""The other ways to read a whole table that a snapshot is compared with: mysqldump, and Debezium's embedded engine."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from benchmarks.workloads import SCHEMA
from devstack.cache import Cache
from devstack.servers.jvm import compile_java, install_jars, java_command
from devstack.servers.mysql import MysqlServer

DEBEZIUM = "3.6.1.Final"
COORDINATES = tuple(f"io.debezium:debezium-{part}:{DEBEZIUM}" for part in ("api", "embedded", "connector-mysql"))
_SOURCE = Path(__file__).with_name("debezium") / "SnapshotCount.java"
_HEAP = "1g"
TUNED = {
    "snapshot.fetch.size": "10240",
    "snapshot.max.threads": "1",
    "max.batch.size": "8192",
    "max.queue.size": "65536",
    # Without its schema a message is a third of what it is with it, and made faster.
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}
"""Properties with which Debezium reads a table faster than with its defaults."""


def mysqldump(server: MysqlServer, table: str) -> list[str]:
    """A command line that prints the table as mysqldump does by default. Raises Unavailable."""
    options = ["--single-transaction", "--no-tablespaces", "--set-gtid-purged=OFF"]
    return [*server.mysqldump_args, *options, SCHEMA, table]


def debezium(cache: Cache) -> list[str]:
    """A command line that counts what Debezium makes, to which a file of properties and a number of rows are to be
    added. Java and Debezium are installed when they are not there. Raises Unavailable."""

    def finish(fresh: Path) -> None:
        compile_java(cache, [_SOURCE], fresh)

    # Another source is another revision: what was compiled of the one before is of no use.
    prefix = install_jars(cache, "debezium", DEBEZIUM, COORDINATES, finish, zlib.crc32(_SOURCE.read_bytes()))
    return [*java_command(cache, _HEAP, "-cp", f"{prefix}/classes:{prefix}/lib/*"), _SOURCE.stem]


def debezium_properties(server: MysqlServer, table: str, more: dict[str, str]) -> dict[str, str]:
    """The engine's properties for the snapshot of one table, into JSON."""
    login: dict[str, Any] = server.connection("root")
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "topic.prefix": "bench",
        "offset.storage": "SnapshotCount$Forgotten",
        "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        "database.hostname": str(login["host"]),
        "database.port": str(login["port"]),
        "database.user": str(login["user"]),
        "database.password": str(login["password"]),
        "database.server.id": "880001",
        "database.ssl.mode": "disabled",
        "driver.allowPublicKeyRetrieval": "true",
        "table.include.list": f"{SCHEMA}.{table}",
        "include.schema.changes": "false",
        "snapshot.mode": "initial_only",
        "snapshot.locking.mode": "none",
        **more,
    }
