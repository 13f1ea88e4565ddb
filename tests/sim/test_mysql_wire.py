"""The model of MySQL packet by packet, over a transport in memory that has no more than the simulator's."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from sim.mysql import wire
from sim.mysql.accounts import SHA2, Account, scramble
from sim.mysql.connection import Connection
from sim.mysql.result import plain
from tests.sim.reading import model, until

_QUERY, _DUMP = b"\x03", b"\x12"
_CAPABILITIES = 1 << 9 | 1 << 15 | 1 << 19 | 1 << 21


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = ""

    def get_extra_info(self, name: str) -> Any:
        return None

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "close"

    def abort(self) -> None:
        self.closed = "abort"

    def packets(self) -> list[tuple[int, bytes]]:
        """The packets since the last call: numbers and payloads."""
        data, found, at = bytes(self.written), [], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 3], "little")
            found.append((data[at + 3], data[at + 4 : at + 4 + size]))
            at += 4 + size
        self.written.clear()
        return found


def packet(payload: bytes, sequence: int = 0) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([sequence]) + payload


def logged_in(server: Any, *, capabilities: int = _CAPABILITIES) -> tuple[Connection, Transport]:
    connection, transport = server.protocol(), Transport()
    connection.connection_made(transport)
    ((number, greeting),) = transport.packets()
    assert (number, greeting[0]) == (0, 10)
    at = greeting.index(0) + 5
    nonce = greeting[at : at + 8] + greeting[-1 - len(SHA2) - 13 : -1 - len(SHA2) - 1]
    proof = scramble(SHA2, nonce, b"canal")
    head = struct.pack("<IIB23x", capabilities, 1 << 24, 255)
    connection.data_received(packet(head + b"canal\0" + wire.text(proof) + SHA2.encode() + b"\0", 1))
    assert [one[1][:2] for one in transport.packets()] == [b"\x01\x03", b"\0\0"]
    return connection, transport


def conversation(seed: int) -> bytes:
    """Everything that a model with this seed sends in a short conversation, which comes byte by byte."""
    server = model(seed)
    connection, transport = logged_in(server)
    said = bytearray()
    for command in (_QUERY + b"SELECT @@server_uuid, 1.5 AS x", b"\x0e", _QUERY + b"nonsense", b"\x7f", b"\x01"):
        for one in packet(command):
            connection.data_received(bytes([one]))
        said += transport.written
        transport.written.clear()
    assert transport.closed == "close"
    return bytes(said)


def test_the_same_seed_gives_the_same_conversation() -> None:
    assert conversation(5) == conversation(5)
    assert conversation(5) != conversation(6)


def test_packets_are_numbered_from_the_command_on() -> None:
    connection, transport = logged_in(model())
    connection.data_received(packet(_QUERY + b"SELECT 1 AS a UNION ALL SELECT 2") + packet(b"\x0e"))
    found = transport.packets()
    assert [number for number, _ in found] == [1, 2, 3, 4, 5, 6, 1]
    assert [payload for _, payload in found[3:5]] == [b"\x011", b"\x012"]
    assert found[2][1][0] == found[5][1][0] == 0xFE


def test_a_client_that_wants_no_eof_gets_an_ok_at_the_end() -> None:
    connection, transport = logged_in(model(), capabilities=_CAPABILITIES | 1 << 24)
    connection.data_received(packet(_QUERY + b"SELECT 1"))
    found = [payload for _, payload in transport.packets()]
    assert found[2] == b"\x011"
    assert found[3] == b"\xfe\0\0\x02\0\0\0"


def test_a_command_of_16_mb_comes_in_two_packets() -> None:
    connection, transport = logged_in(model())
    text = _QUERY + b"SELECT 1 /*" + b"x" * wire.LARGEST + b"*/"
    first, rest = text[: wire.LARGEST], text[wire.LARGEST :]
    connection.data_received(packet(first) + packet(rest, 1))
    assert [payload for _, payload in transport.packets()][3] == b"\x011"


async def test_a_dump_waits_while_its_reader_takes_nothing() -> None:
    server = model()
    client = server.session()
    client.ddl("CREATE DATABASE shop")
    client.ddl("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    connection, transport = logged_in(server)
    connection.data_received(packet(_DUMP + struct.pack("<IHI", 4, 0, 9) + b"binlog.000001"))
    begun = transport.packets()
    assert [payload[5] for _, payload in begun][:2] == [4, 15]
    assert [number for number, _ in begun] == list(range(1, len(begun) + 1))
    connection.pause_writing()
    client.insert("shop.t", (1,))
    assert connection.dump is not None
    await until(lambda: not connection.dump._scheduled)  # type: ignore[union-attr]
    assert not transport.written
    connection.resume_writing()
    await until(lambda: bool(transport.written))
    assert [payload[5] for _, payload in transport.packets()] == [33, 2, 19, 30, 16]
    connection.connection_lost(None)
    assert server.dumps == server.connections == []
    assert server.sessions.keys() == {client.thread}


async def test_a_dump_ends_where_a_file_is_torn_that_others_follow() -> None:
    server = model()
    client = server.session()
    client.ddl("CREATE DATABASE shop")
    client.ddl("CREATE TABLE shop.t (id INT PRIMARY KEY)")
    server.rotate()
    torn = server.engine.binlog.files[0]
    whole = torn.size
    torn.tear(len(torn.events) - 2)
    assert len(torn.as_bytes()) == torn.size + len(torn.torn) < whole
    connection, transport = logged_in(server)
    connection.data_received(packet(_DUMP + struct.pack("<IHI", 4, 0, 9) + b"binlog.000001"))
    *_, (_, error) = transport.packets()
    assert error[0] == 0xFF
    assert b"binlog truncated in the middle of event" in error
    assert f"last event read from './binlog.000001' at {torn.size}, the last byte".encode() in error


async def test_a_crash_aborts_and_a_stop_ends_dumps_with_an_eof() -> None:
    for stops, ended in ((True, "close"), (False, "abort")):
        server = model()
        connection, transport = logged_in(server)
        connection.data_received(packet(_DUMP + struct.pack("<IHI", 4, 0, 9)))
        transport.packets()
        if stops:
            server.stop()
            assert [payload[0] for _, payload in transport.packets()] == [0xFE]
        else:
            server.crash()
            assert not transport.written
        assert transport.closed == ended
        late = Transport()
        server.protocol().connection_made(late)
        assert late.closed == "abort"


@pytest.mark.parametrize("size", [0, 250, 251, 65535, 65536, 1 << 24])
def test_lengths_are_read_as_they_are_written(size: int) -> None:
    raw = wire.number(size)
    assert wire.read_number(raw + b"\0", 0) == (size, len(raw))
    assert plain(("a",), [(None,)]).packets() == [b"\xfb"]


def test_an_account_has_privileges_everywhere_on_databases_and_on_tables() -> None:
    account = Account("a", "p", ("PROCESS",), {"shop": ("SELECT",), "other.t": ("INSERT", "UPDATE")})
    assert account.has("SELECT", "shop", "any")
    assert not account.has("SELECT", "other", "t")
    assert account.sees("other", "t")
    assert not account.sees("other", "u")
    assert account.grants() == [
        "GRANT PROCESS ON *.* TO `a`@`%`",
        "GRANT SELECT ON `shop`.* TO `a`@`%`",
        "GRANT INSERT, UPDATE ON `other`.`t` TO `a`@`%`",
    ]
