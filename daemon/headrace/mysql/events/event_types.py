"""Numbers of binlog events (MySQL's Log_event_type, MariaDB's from 160 on) and what headrace does with each."""

from __future__ import annotations

QUERY, STOP, ROTATE, FORMAT_DESCRIPTION, XID = 2, 3, 4, 15, 16
TABLE_MAP, INCIDENT, HEARTBEAT, ROWS_QUERY = 19, 26, 27, 29
WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1 = 23, 24, 25
WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS, PARTIAL_UPDATE_ROWS = 30, 31, 32, 39
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, XA_PREPARE = 33, 34, 35, 38
TRANSACTION_PAYLOAD, HEARTBEAT_V2, TAGGED_GTID = 40, 41, 42
ANNOTATE_ROWS, MARIADB_GTID, GTID_LIST, QUERY_COMPRESSED = 160, 162, 163, 165
MARIADB_COMPRESSED_ROWS = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
"""MariaDB's compressed rows events and what each is once it is decompressed."""

HARMLESS = frozenset({STOP, ROWS_QUERY, HEARTBEAT, HEARTBEAT_V2, 5, 13, 14, 36, 37, ANNOTATE_ROWS, 161, GTID_LIST})
"""Nothing in them changes rows: server stop, statement texts, statement variables (the statement itself is looked
at), group replication's bookkeeping, MariaDB's annotations, checkpoints and GTID lists."""

MADE_UP = frozenset({ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2, GTID_LIST})
"""What a source also makes up for the dump, without a place in the file."""

IGNORABLE_FLAG = 0x80
"""The server's promise that a reader that does not know the event may pass over it."""
ARTIFICIAL_FLAG = 0x20
"""The event was made up for the dump and stands in no file."""

NAMES = {
    INCIDENT: "INCIDENT",
    164: "MariaDB START_ENCRYPTION",
}

REMEDIES = {
    INCIDENT: "the source says that events are missing: compare the tables, then name the place in [source] skip_event",
    164: "the binlog is encrypted: read it from the server rather than from the file",
}
"""What helps against the event."""
