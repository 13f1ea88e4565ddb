"""Numbers of binlog events (MySQL's Log_event_type, MariaDB's from 160 on) and what headrace does with each."""

from __future__ import annotations

QUERY, STOP, ROTATE, FORMAT_DESCRIPTION, XID = 2, 3, 4, 15, 16
TABLE_MAP, INCIDENT, HEARTBEAT, ROWS_QUERY = 19, 26, 27, 29
WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1 = 23, 24, 25
WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = 30, 31, 32
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, XA_PREPARE = 33, 34, 35, 38
HEARTBEAT_V2, MARIADB_GTID = 41, 162

HARMLESS = frozenset({STOP, ROWS_QUERY, HEARTBEAT, HEARTBEAT_V2, 5, 13, 14, 36, 37, 160, 161, 163})
"""Nothing in them changes rows: server stop, statement texts, statement variables (the statement itself is looked
at), group replication's bookkeeping, MariaDB's annotations, checkpoints and GTID lists."""

IGNORABLE_FLAG = 0x80
"""The server's promise that a reader that does not know the event may pass over it."""

NAMES = {
    INCIDENT: "INCIDENT",
    39: "PARTIAL_UPDATE_ROWS",
    40: "TRANSACTION_PAYLOAD",
    42: "GTID_TAGGED",
    164: "MariaDB START_ENCRYPTION",
    165: "MariaDB QUERY_COMPRESSED",
    **dict.fromkeys(range(166, 172), "MariaDB compressed rows"),
}

REMEDIES = {
    39: "SET PERSIST binlog_row_value_options = '';",
    40: "SET PERSIST binlog_transaction_compression = OFF;",
    165: "SET GLOBAL log_bin_compress = OFF;",
    **dict.fromkeys(range(166, 172), "SET GLOBAL log_bin_compress = OFF;"),
}
"""What keeps the event out of the binlog from now on."""
