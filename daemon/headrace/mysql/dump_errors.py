"""What a server answers instead of events: its error packet as one of our errors, by number and text."""

from __future__ import annotations

from headrace.errors import (
    HeadraceError,
    LostKind,
    NotUnderstood,
    PositionLost,
    ServerIdTaken,
    SourceError,
    SourceMisconfigured,
)

_LOST = (
    "could not find first log file name",
    "position > file size",
    "position < 4",
    "impossible position",
    "purged required binary logs",
    "required binlog files have been purged",
    "more gtids than the source has",
    "truncated in the middle of event",
    "is not in the binlog",
    "not in the master's binlog",
)
_DAMAGED = ("bogus data", "max_allowed_packet", "event read from binlog did not")
_REMEDY = "choose where to go on: see docs/operations.md, 'POSITION_LOST'"


def dump_error(payload: bytes, where: str) -> HeadraceError:
    """The error of an ERR packet; texts of MySQL and MariaDB that mean the same give the same class."""
    errno = int.from_bytes(payload[1:3], "little")
    text = payload[9:] if payload[3:4] == b"#" else payload[3:]
    message = f"the source ended the dump behind {where}: {text.decode('utf-8', 'replace')} (errno {errno})"
    low = message.lower()
    if "same server_uuid/server_id" in low or errno == 4052:
        return ServerIdTaken(message, remedy="give this destination a [source] server_id of its own")
    if "binary log is not open" in low or "binlog is not open" in low:
        return SourceMisconfigured(message, remedy="start the server with log_bin enabled")
    if any(part in low for part in _LOST):
        return PositionLost(message, kind=LostKind.POSITION_PURGED, remedy=_REMEDY)
    if errno == 1236 and any(
        part in low for part in ("bogus data", "max_allowed_packet", "event read from binlog did not")
    ):
        return NotUnderstood(message, remedy="the binlog on the source is damaged; check it with mysqlbinlog")
    if errno in (1045, 1227, 1142):
        return SourceMisconfigured(message, remedy="GRANT REPLICATION SLAVE ON *.* TO the user of [source];")
    return SourceError(message)
