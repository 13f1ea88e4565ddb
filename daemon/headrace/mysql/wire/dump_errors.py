"""Turns the errors that a server sends instead of events or rows, by number and text, into ours.

Errno 1236 has about twenty causes, which only its text distinguishes. MySQL and MariaDB word most of them differently,
and so did older versions ("master" and "slave" for "source" and "replica")."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace import errors
from headrace.errors import HeadraceError, LostKind, PositionLost, SourceError

GONE_AWAY = frozenset({1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1317, 1927, 2006, 2013, 2055, 3169, 4031})
"""The server stops, ended the session, or lost the connection: shutdown, KILL, network, idle too long."""
BUSY = frozenset({1040, 1129, 1203, 1226, 2002, 2003, 2005})
"""No connection now, but possibly later or elsewhere: too many connections, host blocked, nothing listens."""
DENIED = frozenset({1044, 1045, 1130, 1142, 1143, 1227, 1370, 1410, 1698, 3118, 3879})
"""The account lacks a right, or could not be authenticated."""
_BAD_ACCOUNT = frozenset({1820, 1862, 3159})
_NO_BINLOG = 1381
_SAME_ID = 4052
_NO_FILE = 29

_POSITIONS = re.compile(
    r"the first event '(?P<file>[^']*)' at (?P<first>\d+), the last event read from '(?P<in>[^']*)' at (?P<last>\d+), "
    r"the last byte read from '(?P<byte_in>[^']*)' at (?P<byte>\d+)"
)
_PRIVILEGES = re.compile(r"\(at least one of\) the (?P<names>[A-Z_, ]+?) privilege")
_TABLE = re.compile(r"(?P<right>[A-Z]+) command denied to user .* for table (?P<table>\S+)")
_SCHEMA = re.compile(r"to database '(?P<schema>[^']+)'")
_MISSING = re.compile(r"missing transactions are '(?P<gtids>[^']*)")
_MARIADB_GTID = re.compile(r"start from GTID (?P<gtid>[\d-]+), which is not in the")
_NOT_FOUND = re.compile(r"File '(?P<file>[^']*)' not found \(Errcode: 2\b")

_PURGED = ("could not find first log file name",)
_NEXT_GONE = "could not find next log"
_BEYOND = ("position > file size", "position < 4", "impossible position")
_GTIDS_PURGED = (
    "purged required binary logs",
    "has purged binary logs containing gtids",
    "required binlog files have been purged",
)
_AHEAD = ("more gtids than the source has", "more gtids than the master has")
_CUT_OFF = "truncated in the middle of event"
_DAMAGED = ("bogus data in log event", "exceeded max_allowed_packet", "did not pass crc check", "checksum verification")
_CHECK = "run mysqlbinlog --verify-binlog-checksum over it on the source, and on a replica, whose copy may be sound"


def dump_error(payload: bytes, where: str, source: str = "the source") -> HeadraceError:
    """Returns the error of an ERR packet that came in place of an event (MySQL internals manual, "ERR_Packet").

    `where` is the position after the last good event, `file:offset`; the file is empty if a dump by GTID began.
    `source` is the server's name. An unknown error is a plain SourceError with its number and text."""
    errno = int.from_bytes(payload[1:3], "little")
    raw = payload[9:] if payload[3:4] == b"#" else payload[3:]
    text = raw.decode("utf-8", "replace").strip().strip('"')
    said = _Said(errno, text, text.lower(), _where(where), source, _POSITIONS.search(text))
    for error_of in (_lost, _changed, _damaged, _taken, _set_up, _ended):
        if (error := error_of(said)) is not None:
            return error
    return SourceError(f"{source} ended the dump at {said.where}: {said.quoted}")


@dataclass(frozen=True, slots=True)
class _Said:
    """An error with the facts that its text contains."""

    errno: int
    text: str
    low: str
    where: str
    source: str
    positions: re.Match[str] | None

    @property
    def quoted(self) -> str:
        return f"{self.text} (errno {self.errno})"

    @property
    def file(self) -> str:
        return self.where.rpartition(":")[0] or "a binlog that the stored GTID set needs"

    @property
    def stopped(self) -> str:
        """Returns `file:offset` of the last byte that the source read; "" if the text does not have it."""
        if self.positions is None:
            return ""
        return f"{_base(self.positions['byte_in'])}:{self.positions['byte']}"

    @property
    def broken(self) -> str:
        """Returns where the event begins that could not be read."""
        if self.positions is None:
            return self.where
        return f"{_base(self.positions['in'])}:{self.positions['last']}"

    @property
    def read_nothing(self) -> bool:
        """Returns whether the first requested event is the one that could not be read, so that the position itself may
        be wrong. Offset 4 never is: each file has an event there."""
        found = self.positions
        return (
            found is not None
            and int(found["first"]) > 4
            and _base(found["file"]) == _base(found["in"])
            and int(found["last"]) <= int(found["first"])
        )


_CHOOSE = "choose where to go on (headrace position set DESTINATION WHERE)"


def _lost(said: _Said) -> HeadraceError | None:
    """Returns the error if the source can't serve our position."""
    purged, beyond = LostKind.POSITION_PURGED, LostKind.BEYOND_END
    gone = _NOT_FOUND.search(said.text) if said.errno == _NO_FILE else None
    if gone or (said.errno == 1236 and "could not open log file" in said.low):
        file = _base(gone["file"]) if gone else said.file
        message = f"{file} is in the source's list of binlogs and can't be opened there: it was removed from the disk"
        remedy = f"put {file} back into the source's binlog folder, or {_CHOOSE}"
        return _position_lost(f"{message}, or the server may not read it", said, purged, remedy)
    if _has(said, _PURGED):
        message = f"the source no longer has the binlog of {said.where}"
        return _position_lost(message, said, purged, f"point [source] to a server that has it, or {_CHOOSE}")
    if _has(said, _GTIDS_PURGED):
        missing = _MISSING.search(said.text)
        which = f" ({missing['gtids']})" if missing else ""
        message = f"the source has purged transactions{which} that were not read yet"
        remedy = f"point [source] to a server that has them, or {_CHOOSE}"
        return _position_lost(message, said, LostKind.GTIDS_PURGED, remedy)
    if _has(said, _BEYOND):
        message = f"{said.where} is no position in the source's file: it is shorter, or another one under the same name"
        return _position_lost(message, said, beyond, _CHOOSE)
    if _CUT_OFF in said.low:
        return _truncated(said)
    if said.read_nothing and _has(said, _DAMAGED):
        message = f"what the source has at {said.where} is no event: the position is wrong, or the binlog is damaged"
        return _position_lost(message, said, LostKind.TRUNCATED, f"{_CHECK}; then {_CHOOSE}")
    return None


def _truncated(said: _Said) -> PositionLost:
    if said.read_nothing:
        message = f"{said.where} lies in the middle of an event, or the source's file ends within that event"
    else:
        message = f"the source's file ends in the middle of the event at {said.broken}"
    remedy = "if a later binlog exists, headrace position set DESTINATION next-file passes over the rest of this one"
    return _position_lost(message, said, LostKind.TRUNCATED, remedy)


def _position_lost(message: str, said: _Said, kind: LostKind, remedy: str) -> PositionLost:
    position = said.stopped if kind is LostKind.TRUNCATED else ""  # else it is only where the search for ours ended
    return PositionLost(f"{message}; it says: {said.quoted}", kind=kind, position=position, remedy=remedy)


def _changed(said: _Said) -> HeadraceError | None:
    """Returns the error if we know transactions that the source does not."""
    found = _MARIADB_GTID.search(said.text)
    if found is None and not _has(said, _AHEAD):
        return None
    extra = found["gtid"] if found else ""
    message = "transactions were published that the source has not: it was reset, restored or crashed, or is another"
    return errors.SourceChanged(
        f"{message}; it says: {said.quoted}",
        extra=extra,
        remedy='bring them to the server, or go on without them: [source] on_diverged = "continue"',
    )


def _damaged(said: _Said) -> HeadraceError | None:
    if "bad magic number" in said.low:
        return errors.BinlogCorrupt(f"the source's file {said.file} is no binlog: {said.quoted}", remedy=_CHECK)
    if _has(said, _DAMAGED):
        message = f"the source's binlog is damaged at {said.broken} (good up to {said.where})"
        return errors.BinlogCorrupt(f"{message}; it says: {said.quoted}", remedy=_CHECK)
    return None


def _taken(said: _Said) -> HeadraceError | None:
    if said.errno != _SAME_ID and "same server_uuid/server_id" not in said.low:
        return None
    message = f"another replica connected with our server id, and the source ended our dump at {said.where}"
    remedy = "give this destination a [source] server_id of its own; SHOW REPLICAS lists those in use"
    return errors.ServerIdTaken(f"{message}; it says: {said.quoted}", disconnected=True, remedy=remedy)


def _set_up(said: _Said) -> HeadraceError | None:
    """Returns the error about settings and grants."""
    if said.errno == _NO_BINLOG or (said.errno == 1236 and "log is not open" in said.low):
        return errors.BinlogOff(f"the source writes no binlog: {said.quoted}", remedy=BINLOG_ON)
    if said.errno == 1236 and "misconfigured" in said.low:
        return errors.SourceMisconfigured(
            f"the source refuses replicas: {said.quoted}", remedy="set server_id on the source"
        )
    if "cannot replicate anonymous transaction" in said.low:
        message = f"the binlog has transactions without GTIDs after {said.where}, which the source gives to nobody"
        return errors.SourceMisconfigured(
            f"{message} while its gtid_mode is ON: {said.quoted}",
            remedy="SET GLOBAL gtid_mode = 'ON_PERMISSIVE'; on the source until headrace has read them ('headrace "
            "position show DESTINATION'), then 'ON' again; or give them up with 'headrace position set "
            "DESTINATION WHERE'",
        )
    if said.errno in DENIED:
        remedy = grant_for(said.errno, said.text, "<user>") or "check [source] user and its grants"
        return errors.GrantMissing(f"the source refuses our account the dump: {said.quoted}", remedy=remedy)
    return None


def _ended(said: _Said) -> HeadraceError | None:
    if said.errno == 1236 and _NEXT_GONE in said.low:
        # A RESET during our dump, or files removed from the list: the next opening finds out which.
        message = f"the binlogs of {said.source} were reset or removed while they were read, after {said.where}"
        return errors.SourceEnded(f"{message}; it says: {said.quoted}")
    if said.errno in GONE_AWAY or said.errno in BUSY:
        return errors.SourceEnded(f"{said.source} ended the dump after {said.where}: {said.quoted}")
    return None


def query_error(errno: int, text: str, what: str, user: str) -> SourceError | None:
    """Returns the error of a statement or a login, `what` in words; None if it is none of the known ones."""
    said = f"{what}: {text} (errno {errno})"
    if errno in DENIED:
        default = f"check [source] user and password, or: ALTER USER '{user}'@'%' IDENTIFIED BY '<password>';"
        return errors.GrantMissing(said, remedy=grant_for(errno, text, user) or default)
    if errno in _BAD_ACCOUNT:
        remedy = (
            '[source] tls = "required"' if errno == 3159 else f"ALTER USER '{user}'@'%' IDENTIFIED BY '<password>';"
        )
        return errors.SourceMisconfigured(said, remedy=remedy)
    if errno == _NO_BINLOG or "not using binary logging" in text:
        return errors.BinlogOff(f"the source writes no binlog: {said}", remedy=BINLOG_ON)
    if errno in GONE_AWAY or errno in BUSY:
        return errors.SourceUnreachable(said)
    return None


BINLOG_ON = "in my.cnf: [mysqld] log_bin = mysql-bin, server_id = 1; then restart the server"
"""Makes a server write a binlog."""


_OTHERWISE = {
    1130: "CREATE USER '{user}'@'%' IDENTIFIED BY '<password>'; and its grants, for the host that the text names",
    3118: "ALTER USER '{user}'@'%' ACCOUNT UNLOCK;",
}


def grant_for(errno: int, text: str, user: str) -> str:
    """Returns the GRANT that a refusal requires; "" if the text does not name a right (a wrong password does not)."""
    if (privileges := _PRIVILEGES.search(text)) is not None:
        # SUPER would do too, and is more than needed
        names = [name.strip() for name in privileges["names"].split(",")]
        right = next((name for name in names if name != "SUPER"), "SUPER")
        return f"GRANT {right} ON *.* TO '{user}'@'%';"
    if errno == 1142 and (table := _TABLE.search(text)) is not None:
        schema, _, name = table["table"].replace("`", "").strip("'").rpartition(".")  # MySQL does not name the schema
        about = "" if schema else f"  -- the schema of the table {name}"
        return f"GRANT {table['right']} ON `{schema or 'SCHEMA'}`.* TO '{user}'@'%';{about}"
    if errno == 1044 and (schema_said := _SCHEMA.search(text)) is not None:
        return f"GRANT SELECT ON `{schema_said['schema']}`.* TO '{user}'@'%';"
    return _OTHERWISE.get(errno, "").format(user=user)


def _has(said: _Said, parts: tuple[str, ...]) -> bool:
    return any(part in said.low for part in parts)


def _base(path: str) -> str:
    """Returns a file as SHOW BINARY LOGS names it: servers put their folder before it in some texts."""
    return path.rpartition("/")[2]


def _where(where: str) -> str:
    return "the stored GTID set" if where.startswith(":") else where
