"""Other ways to read a whole table, for comparison with a snapshot: mysqldump, and Debezium's embedded engine."""

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
_SOURCE = Path(__file__).with_name("debezium") / "EngineCount.java"
_HEAP = "1g"
TUNED = {
    "snapshot.fetch.size": "10240",
    "snapshot.max.threads": "1",
    "max.batch.size": "8192",
    "max.queue.size": "65536",
    # Without its schema a message has a third of the size, and is made faster.
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}
"""Properties with which Debezium reads a table faster than with its defaults."""


def mysqldump(server: MysqlServer, table: str) -> list[str]:
    """Returns a command line that prints the table as mysqldump does by default. Raises Unavailable."""
    options = ["--single-transaction", "--no-tablespaces", "--set-gtid-purged=OFF"]
    return [*server.mysqldump_args, *options, SCHEMA, table]


def debezium(cache: Cache) -> list[str]:
    """Returns a command line that counts what Debezium makes, to which a file of properties and a number of rows must
    be added. Installs Java and Debezium if necessary. Raises Unavailable."""

    def finish(fresh: Path) -> None:
        compile_java(cache, [_SOURCE], fresh)

    # Another source is another revision: what was compiled from the old one is useless.
    prefix = install_jars(cache, "debezium", DEBEZIUM, COORDINATES, finish, zlib.crc32(_SOURCE.read_bytes()))
    return [*java_command(cache, _HEAP, "-cp", f"{prefix}/classes:{prefix}/lib/*"), _SOURCE.stem]


def debezium_properties(server: MysqlServer, table: str, more: dict[str, str]) -> dict[str, str]:
    """Returns the engine's properties for the snapshot of one table, as JSON."""
    login: dict[str, Any] = server.connection("root")
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "topic.prefix": "bench",
        "offset.storage": "EngineCount$Forgotten",
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
