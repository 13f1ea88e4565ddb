"""Errors of the model, with the numbers, states and texts of the server (MySQL 9 manual, "Server Error Message
Reference")."""

from __future__ import annotations

_STATES = {
    1007: "HY000", 1008: "HY000", 1040: "08004", 1044: "42000", 1045: "28000", 1046: "3D000", 1048: "23000",
    1049: "42000", 1050: "42S01", 1051: "42S02", 1053: "08S01", 1054: "42S22", 1060: "42S21", 1061: "42000",
    1062: "23000", 1064: "42000", 1068: "42000", 1091: "42000", 1094: "HY000", 1142: "42000", 1146: "42S02",
    1193: "HY000", 1205: "HY000", 1227: "42000", 1236: "HY000", 1264: "22003", 1265: "01000", 1292: "22007",
    1305: "42000", 1317: "70100", 1364: "HY000", 1366: "HY000", 1397: "XAE04", 1399: "XAE07", 1400: "XAE09",
    1402: "XA100", 1406: "22001", 1412: "HY000", 1440: "XAE08",
}  # fmt: skip


class SqlError(Exception):
    """A refusal by the server: number, SQLSTATE and text."""

    def __init__(self, errno: int, text: str) -> None:
        super().__init__(f"{text} (errno {errno})")
        self.errno, self.state, self.text = errno, _STATES.get(errno, "HY000"), text


class ServerDown(ConnectionError):
    """The server does not run, or has ended the session."""


def unknown_statement(near: str) -> SqlError:
    """Returns error 1064."""
    return SqlError(
        1064,
        "You have an error in your SQL syntax; check the manual that corresponds to your MySQL server version for the "
        f"right syntax to use near '{near[:80]}' at line 1",
    )


def no_table(schema: str, table: str) -> SqlError:
    """Returns error 1146."""
    return SqlError(1146, f"Table '{schema}.{table}' doesn't exist")


def no_schema(schema: str) -> SqlError:
    """Returns error 1049."""
    return SqlError(1049, f"Unknown database '{schema}'")


def no_column(name: str, where: str = "field list") -> SqlError:
    """Returns error 1054."""
    return SqlError(1054, f"Unknown column '{name}' in '{where}'")


class Locked(SqlError):
    """Error 1205: another transaction has locked the row and is not over. A connection waits for it before it gives up;
    a session that a test uses by itself does not."""

    def __init__(self) -> None:
        super().__init__(1205, "Lock wait timeout exceeded; try restarting transaction")


def denied(privileges: str) -> SqlError:
    """Returns error 1227 for a missing global privilege."""
    return SqlError(1227, f"Access denied; you need (at least one of) the {privileges} privilege(s) for this operation")
