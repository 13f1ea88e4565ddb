"""What determines a DDL's meaning on a server: kind, version, character sets, and the session's SQL mode."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.mysql.values.charsets import WIDTHS

_REAL_AS_FLOAT = 1
_ORACLE_MODE, _MAXDB_MODE = 512, 4096
"""MariaDB's POSTGRESQL, ORACLE, MSSQL, DB2 and MAXDB, in which some types have other meanings."""

_MARIADB_DIVIDED, _MARIADB_SLAVE_MONITOR = 100502, 100509

_NBSP_IS_SPACE = frozenset({"armscii8", "cp1250", "cp852", "cp866", "dec8", "geostd8", "greek", "hebrew", "keybcs2"})
_NBSP_IS_SPACE |= {"latin1", "latin2", "latin5", "latin7"}
"""Character sets in which both servers count it as a space (tested with SELECT, code by code)."""

CODECS = {
    **dict.fromkeys(("utf8mb4", "utf8mb3"), "utf-8"),
    **{name: name for name in ("ascii", "gbk", "gb18030", "big5", "cp850", "cp852", "cp866", "gb2312")},
    **{name: name for name in ("cp1250", "cp1251", "cp1256", "cp1257", "cp932")},
    "latin1": "cp1252", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7",
    "hebrew": "iso8859-8", "koi8r": "koi8-r", "koi8u": "koi8-u", "sjis": "shift_jis", "ujis": "euc_jp",
    "euckr": "euc_kr", "eucjpms": "euc_jp", "tis620": "tis-620", "macroman": "mac-roman",
    "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be", "ucs2": "utf-16-be",
}  # fmt: skip
"""Python's codecs, to check whether a text can be written in a character set at all."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One server and session. `version` is as in executable comments: 80404, 101106."""

    mariadb: bool
    version: int
    sql_mode: int = 0
    server_charset: str = ""
    """The character set of a CREATE DATABASE without one; "" if the event does not say."""
    client_charset: str = ""
    """That of the statement's text; "" if the event does not say."""

    @property
    def nbsp_is_space(self) -> bool:
        """Returns whether U+00A0 separates words, rather than being part of one. Other spaces beyond ASCII never do."""
        return self.client_charset in _NBSP_IS_SPACE

    @property
    def real_is_float(self) -> bool:
        """Returns whether REAL is FLOAT rather than DOUBLE (sql_mode REAL_AS_FLOAT)."""
        return bool(self.sql_mode & _REAL_AS_FLOAT)

    @property
    def oracle_mode(self) -> bool:
        """Returns whether types have their meaning in MariaDB's Oracle mode."""
        return self.mariadb and bool(self.sql_mode & _ORACLE_MODE)

    @property
    def maxdb_mode(self) -> bool:
        """Returns whether types have their meaning in MaxDB, which is not known here."""
        return self.mariadb and bool(self.sql_mode & _MAXDB_MODE)

    @property
    def setter(self) -> str:
        """Returns the beginning of a statement that sets a global variable permanently, as far as the server can."""
        return "SET GLOBAL" if self.mariadb or self.version < 80000 else "SET PERSIST"

    @property
    def binlog_right(self) -> str:
        """Returns the privilege to see the end of the binlog. MariaDB divided REPLICATION CLIENT in 10.5.2."""
        return "BINLOG MONITOR" if self.mariadb and self.version >= _MARIADB_DIVIDED else "REPLICATION CLIENT"

    @property
    def replication_right(self) -> str:
        """Returns the privilege to see whether the server replicates from another."""
        if not self.mariadb or self.version < _MARIADB_DIVIDED:
            return "REPLICATION CLIENT"
        return "SLAVE MONITOR" if self.version >= _MARIADB_SLAVE_MONITOR else "REPLICATION SLAVE ADMIN"

    @property
    def replicas_right(self) -> str:
        """Returns the privilege to see the server's replicas."""
        return "REPLICATION MASTER ADMIN" if self.mariadb and self.version >= _MARIADB_DIVIDED else "REPLICATION SLAVE"

    @property
    def has_checksums(self) -> bool:
        """Returns whether its binlogs say if their events have checksums. MySQL 5.5 and older have none."""
        return not 0 < self.version < (50300 if self.mariadb else 50601)

    @property
    def shows_widths(self) -> bool:
        """Returns whether information_schema prints int(11) rather than int."""
        return self.mariadb or self.version < 80019

    @property
    def timestamp_is_null(self) -> bool:
        """Returns whether a TIMESTAMP without NULL or NOT NULL may be NULL (explicit_defaults_for_timestamp)."""
        return self.version >= (101000 if self.mariadb else 80002)

    @property
    def shows_replicas(self) -> bool:
        """Returns whether the server may be asked for its replicas. MySQL 5.6 then reads variables of their sessions
        without a lock, and can crash while a replica connects or disconnects (MySQL's bug 77195)."""
        return self.mariadb or not 0 < self.version < 50700


def dialect_of(
    version: str, *, mariadb: bool, sql_mode: int = 0, server_charset: str = "", client_charset: str = ""
) -> Dialect:
    """Reads @@version: "8.4.4-log" is 80404, "10.11.6-MariaDB" 101106; unreadable parts count as 0."""
    numbers = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)(?:\.(\d+))?", version)
    if not numbers:
        return Dialect(mariadb, 0, sql_mode, server_charset, client_charset)
    major, minor, patch = int(numbers[1]), int(numbers[2]), int(numbers[3] or 0)
    return Dialect(mariadb, major * 10000 + minor * 100 + patch, sql_mode, server_charset, client_charset)


def server_dialect(variables: Mapping[str, str]) -> Dialect:
    """Returns the dialect of the server with these global variables; see SourceConnection.load_variables."""
    version = variables.get("version", "")
    return dialect_of(version, mariadb="mariadb" in version.lower())


def charset_named(name: str) -> str:
    """Returns a character set's own name in lower case: utf8 is utf8mb3 to both servers."""
    lower = name.lower()
    return "utf8mb3" if lower == "utf8" else lower


def charset_of_collation(name: str) -> str:
    """Returns the character set that a collation's name begins with; "" for MariaDB's names that fit several sets."""
    head = name.lower().split("_", 1)[0]
    return charset_named(head) if charset_named(head) in WIDTHS else ""
