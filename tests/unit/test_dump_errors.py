"""Every error text that MySQL 9.7 and MariaDB 10.11 gave to a replica, and some of older versions, each with its class."""

# ruff: noqa: E501
from __future__ import annotations

import struct

import pytest

from headrace.errors import (
    BinlogCorrupt,
    BinlogOff,
    GrantMissing,
    HeadraceError,
    LostKind,
    PositionLost,
    ServerIdTaken,
    SourceChanged,
    SourceEnded,
    SourceError,
    SourceMisconfigured,
    SourceUnreachable,
)
from headrace.model import State
from headrace.mysql.wire.dump_errors import dump_error, query_error

WHERE = "mysql-bin.000007:1084"


def answer(errno: int, text: str, where: str = WHERE) -> HeadraceError:
    return dump_error(b"\xff" + struct.pack("<H", errno) + b"#HY000" + text.encode(), where, "the source at db:3306")


PURGED, GTIDS, BEYOND, TRUNCATED, _ = LostKind


LOST = [
    # position beyond the end of a file
    (1236, "Client requested source to start replication from position > file size", BEYOND, ""),
    (
        1236,
        "Client requested master to start replication from impossible position; the first event 'mysql-bin.000003' at 101995, the last event read from 'mysql-bin.000003' at 4, the last byte read from 'mysql-bin.000003' at 4.",
        BEYOND,
        "",
    ),
    (
        1236,
        "Client requested master to start replication from impossible position; the first event 'mysql-bin.000001' at 10000000, the last event read from 'mysql-bin.000001' at 4, the last byte read from 'mysql-bin.000001' at 4.",
        BEYOND,
        "",
    ),
    # in the middle of an event
    (
        1236,
        "binlog truncated in the middle of event; consider out of disk space on source; the first event 'mysql-bin.000007' at 1866, the last event read from './mysql-bin.000007' at 127, the last byte read from './mysql-bin.000007' at 1883.",
        TRUNCATED,
        "mysql-bin.000007:1883",
    ),
    (
        1236,
        "binlog truncated in the middle of event; consider out of disk space on master; the first event 'mysql-bin.000003' at 1978, the last event read from 'mysql-bin.000003' at 1978, the last byte read from 'mysql-bin.000003' at 1978.",
        TRUNCATED,
        "mysql-bin.000003:1978",
    ),
    # before the first event
    (1236, "Client requested source to start replication from position < 4", BEYOND, ""),
    (
        1236,
        "Client requested master to start replication from impossible position; the first event 'mysql-bin.000003' at 2, the last event read from 'mysql-bin.000003' at 4, the last byte read from 'mysql-bin.000003' at 4.",
        BEYOND,
        "",
    ),
    (
        1236,
        "Client requested master to start replication from impossible position; the first event 'mysql-bin.000003' at 0, the last event read from 'mysql-bin.000003' at 4, the last byte read from 'mysql-bin.000003' at 4.",
        BEYOND,
        "",
    ),
    # a file that is not listed
    (1236, "Could not find first log file name in binary log index file", PURGED, ""),
    # a file that is listed and gone
    (1236, "Could not open log file", PURGED, ""),
    (29, "File './mysql-bin.000024' not found (Errcode: 2 \"No such file or directory\")", PURGED, ""),
    # GTIDs
    (
        1236,
        "Cannot replicate because the source purged required binary logs. Replicate the missing transactions from elsewhere, or provision a new replica from backup. Consider increasing the source's binary log expiration period. The GTID set sent by the replica is '9a6409ec-e597-11f1-9253-02fc00000001:1', and the missing transactions are '9a6409ec-e597-11f1-9253-02fc00000001:2-32'",
        GTIDS,
        "",
    ),
    (
        1236,
        "Cannot replicate because the source purged required binary logs. Replicate the missing transactions from elsewhere, or provision a new replica from backup. Consider increasing the source's binary log expiration period. The GTID set sent by the replica is '11111111-2222-3333-4444-555555555555:1-5', and the missing transactions are '9a6409ec-e597-11f1-9253-02fc00000001:1-32'",
        GTIDS,
        "",
    ),
    (
        1236,
        "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old and required binlog files have been purged.",
        GTIDS,
        "",
    ),
    # the file ends within an event
    (
        1236,
        "binlog truncated in the middle of event; consider out of disk space on source; the first event 'mysql-bin.000022' at 4, the last event read from './mysql-bin.000022' at 1084, the last byte read from './mysql-bin.000022' at 1109.",
        TRUNCATED,
        "mysql-bin.000022:1109",
    ),
    (
        1236,
        "binlog truncated in the middle of event; consider out of disk space on master; the first event 'mysql-bin.000018' at 4, the last event read from 'mysql-bin.000018' at 1223, the last byte read from 'mysql-bin.000018' at 1242.",
        TRUNCATED,
        "mysql-bin.000018:1242",
    ),
    # versions before 8.0.26 and 5.6
    (1236, "Client requested master to start replication from position > file size", BEYOND, ""),
    (
        1236,
        "The slave is connecting using CHANGE MASTER TO MASTER_AUTO_POSITION = 1, but the master has purged binary logs containing GTIDs that the slave requires.",
        GTIDS,
        "",
    ),
    (1236, "Cannot replicate because the master purged required binary logs.", GTIDS, ""),
]


@pytest.mark.parametrize(("errno", "text", "kind", "position"), LOST)
def test_a_position_that_the_source_can_t_serve_is_reported_with_its_kind(
    errno: int, text: str, kind: LostKind, position: str
) -> None:
    error = answer(errno, text)
    assert isinstance(error, PositionLost)
    assert (error.kind, error.position, error.state, error.retriable) == (kind, position, State.POSITION_LOST, False)
    assert f"{text} (errno {errno})" in str(error)
    assert error.help == f"docs/troubleshooting.md#{kind}"


FAILED_AT = (
    "the last event read from './mysql-bin.000012' at 1084, the last byte read from './mysql-bin.000012' at 1103."
)
DAMAGED_HEADS = [
    "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source",
    "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on master",
    "bogus data in log event",
    "event read from binlog did not pass crc check",
]


@pytest.mark.parametrize("head", DAMAGED_HEADS)
def test_damage_after_valid_events_is_reported_as_damage(head: str) -> None:
    for first in ("'mysql-bin.000012' at 4", "'mysql-bin.000012' at 900", "'mysql-bin.000011' at 2000", "'' at 4"):
        error = answer(1236, f"{head}; the first event {first}, {FAILED_AT}")
        assert isinstance(error, BinlogCorrupt)
        assert "mysql-bin.000012:1084" in str(error)
        assert "mysqlbinlog" in error.remedy
        assert (error.state, error.retriable) == (State.FAILED, False)


@pytest.mark.parametrize("head", DAMAGED_HEADS)
@pytest.mark.parametrize("last", [127, 1084])
def test_damage_at_the_very_position_where_we_began_may_be_a_wrong_position(head: str, last: int) -> None:
    text = f"{head}; the first event 'mysql-bin.000007' at 1084, the last event read from './mysql-bin.000007' at {last}, the last byte read from './mysql-bin.000007' at 1103."
    error = answer(1236, text)
    assert isinstance(error, PositionLost)
    assert (error.kind, error.position) == (LostKind.TRUNCATED, "mysql-bin.000007:1103")
    assert "the position is wrong, or the binlog is damaged" in str(error)


def test_the_start_of_a_file_is_never_a_wrong_position() -> None:
    text = "bogus data in log event; the first event 'mysql-bin.000007' at 4, the last event read from './mysql-bin.000007' at 4, the last byte read from './mysql-bin.000007' at 23."
    assert isinstance(answer(1236, text), BinlogCorrupt)


OTHERS: list[tuple[int, str, type[HeadraceError], State]] = [
    (
        1236,
        "Replica has more GTIDs than the source has, using the source's SERVER_UUID. This may indicate that the the last binary log file was truncated or lost, e.g., after a power failure when sync_binlog != 1. The source may have rolled back transactions that were already replicated to the replica. Replicate any transactions that source has rolled back from replica to source, and/or commit empty transactions on source to account for transactions that have been committed on source but are not included in GTID_EXECU",
        SourceChanged,
        State.SOURCE_CHANGED,
    ),
    (
        1236,
        "Slave has more GTIDs than the master has, using the master's SERVER_UUID.",
        SourceChanged,
        State.SOURCE_CHANGED,
    ),
    (
        1236,
        "\"A replica with the same server_uuid/server_id as this replica has connected to the source; the first event 'mysql-bin.000007' at 1883, the last event read from './mysql-bin.000007' at 127, the last byte read from './mysql-bin.000007' at 1883.\"",
        ServerIdTaken,
        State.SERVER_ID_TAKEN,
    ),
    (
        4052,
        "\"A slave with the same server_uuid/server_id is already connected; the first event '.' at 4, the last event read from 'mysql-bin.000003' at 1964, the last byte read from 'mysql-bin.000003' at 1995.\"",
        ServerIdTaken,
        State.SERVER_ID_TAKEN,
    ),
    (
        1236,
        "Binlog has bad magic number;  It's not a binary log file that can be used by this version of MySQL",
        BinlogCorrupt,
        State.FAILED,
    ),
    (
        1236,
        "Binlog has bad magic number;  It's not a binary log file that can be used by this version of MariaDB",
        BinlogCorrupt,
        State.FAILED,
    ),
    (1236, "Binary log is not open", BinlogOff, State.FAILED),
    (1236, "Misconfigured master - server id was not set", SourceMisconfigured, State.FAILED),
    (
        1227,
        "Access denied; you need (at least one of) the REPLICATION SLAVE privilege(s) for this operation",
        GrantMissing,
        State.FAILED,
    ),
    (1045, "Access denied for user 'canal'@'127.0.0.1' (using password: YES)", GrantMissing, State.FAILED),
    (
        1236,
        "could not find next log; the first event '' at 4, the last event read from './mysql-bin.000004' at 1012, the last byte read from './mysql-bin.000004' at 1012.",
        SourceEnded,
        State.FAILED,
    ),
    (1053, "Server shutdown in progress", SourceEnded, State.FAILED),
    (1317, "Query execution was interrupted", SourceEnded, State.FAILED),
    (1927, "Connection was killed", SourceEnded, State.FAILED),
    (2013, "Lost connection to MySQL server during query", SourceEnded, State.FAILED),
    (1158, "Got an error reading communication packets", SourceEnded, State.FAILED),
]


@pytest.mark.parametrize(("errno", "text", "kind", "state"), OTHERS)
def test_every_other_text_has_its_class(errno: int, text: str, kind: type[HeadraceError], state: State) -> None:
    error = answer(errno, text)
    assert type(error) is kind
    assert error.state is state
    assert text.strip('"') in str(error)
    assert error.remedy or kind is SourceEnded
    if kind is SourceEnded:
        assert "the source at db:3306" in str(error)


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        (
            "Error: connecting slave requested to start from GTID 0-9-999999, which is not in the master's binlog",
            "0-9-999999",
        ),
        (
            "Error: connecting slave requested to start from GTID 0-77-18, which is not in the master's binlog. Since the master's binlog contains GTIDs with higher sequence numbers, it probably means that the slave has diverged due to executing extra erroneous transactions",
            "0-77-18",
        ),
    ],
)
def test_a_gtid_that_the_server_lacks_is_named(text: str, extra: str) -> None:
    error = answer(1236, text)
    assert isinstance(error, SourceChanged)
    assert error.extra == extra


def test_purged_transactions_are_named() -> None:
    text = "Cannot replicate because the source purged required binary logs. The GTID set sent by the replica is 'a:1', and the missing transactions are 'a:2-32'"
    assert "purged transactions (a:2-32) that were not read yet" in str(answer(1236, text))


def test_a_file_removed_from_the_disk_is_distinguished_from_a_purged_one() -> None:
    mysql = answer(1236, "Could not open log file", "mysql-bin.000028:4")
    mariadb = answer(29, "File './mysql-bin.000028' not found (Errcode: 2 \"No such file or directory\")", ":4")
    for error in (mysql, mariadb):
        assert "mysql-bin.000028 is in the source's list of binlogs and can't be opened there" in str(error)
        assert "put mysql-bin.000028 back" in error.remedy
    assert "list of binlogs" not in str(answer(1236, "Could not find first log file name in binary log index file"))


def test_what_is_not_known_is_said_as_it_came() -> None:
    for errno, text in ((1236, "I/O error reading log event"), (1234, "ünknown"), (29, "File 'x' not readable")):
        error = answer(errno, text)
        assert type(error) is SourceError
        assert f"at {WHERE}: {text} (errno {errno})" in str(error)
    assert type(dump_error(b"\xff", "")) is SourceError
    assert type(dump_error(b"\xff\x01", ":4")) is SourceError


def test_a_dump_by_gtid_that_never_began_names_no_file() -> None:
    assert "the stored GTID set" in str(answer(1236, "strange", ":4"))


def test_a_refused_statement_says_which_grant_it_needs() -> None:
    for text, wanted in (
        (
            "the SUPER, REPLICATION CLIENT privilege(s) for this operation",
            "GRANT REPLICATION CLIENT ON *.* TO 'u'@'%';",
        ),
        ("the SUPER, BINLOG MONITOR privilege(s) for this operation", "GRANT BINLOG MONITOR ON *.* TO 'u'@'%';"),
        ("the REPLICATION SLAVE privilege(s) for this operation", "GRANT REPLICATION SLAVE ON *.* TO 'u'@'%';"),
    ):
        error = query_error(1227, f"Access denied; you need (at least one of) {text}", "'SHOW ...' failed", "u")
        assert isinstance(error, GrantMissing)
        assert error.remedy == wanted
    for table, wanted in (
        ("'t1'", "GRANT SELECT ON `SCHEMA`.* TO 'u'@'%';  -- the schema of the table t1"),
        ("`shop`.`t1`", "GRANT SELECT ON `shop`.* TO 'u'@'%';"),
    ):
        error = query_error(1142, f"SELECT command denied to user 'u'@'localhost' for table {table}", "'x' failed", "u")
        assert isinstance(error, GrantMissing)
        assert error.remedy == wanted
    error = query_error(1044, "Access denied for user 'u'@'%' to database 'shop'", "'x' failed", "u")
    assert isinstance(error, GrantMissing)
    assert error.remedy == "GRANT SELECT ON `shop`.* TO 'u'@'%';"


QUERIES = [
    (1381, "You are not using binary logging", BinlogOff),
    (1236, "You are not using binary logging", BinlogOff),
    (1053, "Server shutdown in progress", SourceUnreachable),
    (2006, "MySQL server has gone away", SourceUnreachable),
    (2013, "Lost connection to MySQL server during query", SourceUnreachable),
    (1040, "Too many connections", SourceUnreachable),
    (1045, "Access denied for user 'u'@'127.0.0.1' (using password: YES)", GrantMissing),
    (1130, "Host '10.0.0.1' is not allowed to connect to this MySQL server", GrantMissing),
    (3118, "Access denied for user 'u'@'%'. Account is locked.", GrantMissing),
    (1862, "Your password has expired.", SourceMisconfigured),
    (3159, "Connections using insecure transport are prohibited", SourceMisconfigured),
]


@pytest.mark.parametrize(("errno", "text", "kind"), QUERIES)
def test_a_refused_statement_or_login_has_its_class_and_its_remedy(
    errno: int, text: str, kind: type[SourceError]
) -> None:
    error = query_error(errno, text, "'SHOW BINARY LOGS' failed", "u")
    assert type(error) is kind
    assert "'SHOW BINARY LOGS' failed" in str(error)
    assert bool(error.remedy) is (kind is not SourceUnreachable)


def test_an_ordinary_refusal_of_a_statement_has_no_class_of_its_own() -> None:
    assert query_error(1146, "Table 'a.b' doesn't exist", "'SELECT' failed", "u") is None
