"""What is done below aiomysql's public interface, and only here: it has no replication commands and shows no socket."""

from __future__ import annotations

import asyncio
from typing import Any

KNOWN_VERSIONS = {"aiomysql": ("0.3.2",)}
"""What all of this was tried with, on real servers. It relies on the connection's _writer and _reader with its _buffer,
and on _execute_command() and _read_ok_packet()."""


def transport_of(connection: Any) -> asyncio.Transport | None:
    """The transport of an aiomysql connection; None once that is closed."""
    writer = connection._writer
    return None if writer is None else writer.transport


def has_unread(connection: Any) -> bool:
    """Whether bytes have come that no query has read."""
    return bool(connection._reader._buffer)


async def run_command(connection: Any, command: int, body: bytes) -> None:
    """Sends a command of the protocol, and reads the server's OK. Raises MySQLError, OSError, IncompleteReadError."""
    await connection._execute_command(command, body)
    await connection._read_ok_packet()
