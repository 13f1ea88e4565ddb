"""What the source committed: rows events by GTID, read from its binlog by mysql-replication, and its tables."""

from __future__ import annotations

import warnings
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import GtidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from sim.topic_checker import Committed, Table
from tests.chaos.writer import TABLES


def committed(server: Any, schema: str) -> list[Committed]:
    """Every rows event on the schema that the binlogs hold, in their order."""
    first = server.sql("SHOW BINARY LOGS")[0][0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mysql-replication's own
        reader = BinLogStreamReader(
            connection_settings=dict(server.connection("root")),
            server_id=4712,
            log_file=first,
            log_pos=4,
            resume_stream=True,
            only_events=[GtidEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        )
        found, gtid, number = [], "", 0
        try:
            for event in reader:
                if isinstance(event, GtidEvent):
                    gtid, number = event.gtid, 0
                    continue
                number += 1  # also for other schemas' events, as headrace counts them
                if event.schema == schema:
                    found.append(Committed(f"{gtid}#{number}", len(event.rows)))
        finally:
            reader.close()
    return found


def tables(server: Any, schema: str) -> dict[str, Table]:
    """The tables as messages would have them: every value as text."""
    made: dict[str, Table] = {}
    options = {**server.connection("root"), "database": schema, "charset": "utf8mb4"}
    with pymysql.connect(**options) as connection, connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"SELECT CAST(id AS CHAR), name, CAST(n AS CHAR) FROM {table}")
            made[table] = {id_: {"id": id_, "name": name, "n": n} for id_, name, n in cursor.fetchall()}
    return made
