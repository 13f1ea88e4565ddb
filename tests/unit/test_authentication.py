"""Authentication as MySQL 5.7 and 8.0 do it, which do not run here: a hand-made server greets, switches, checks."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from headrace.errors import SourceError, SourceMisconfigured
from headrace.mysql.wire.connection import Address, SourceConnection

PASSWORD = "hunter2"
NONCE, SECOND_NONCE = b"abcdefghijklmnopqrst", b"ABCDEFGHIJKLMNOPQRST"
_CAPABILITIES = 0x00000001 | 0x00000200 | 0x00002000 | 0x00008000 | 0x00080000 | 0x00000008
"""Long password, protocol 4.1, transactions, secure connection, authentication plugins, with schema."""
PRIVATE_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PUBLIC_KEY = PRIVATE_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
OAEP = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
OK = b"\0\0\0\x02\0\0\0"


def native(nonce: bytes, password: str = PASSWORD) -> bytes:
    """mysql_native_password's answer."""
    once = hashlib.sha1(password.encode()).digest()
    mask = hashlib.sha1(nonce + hashlib.sha1(once).digest()).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True))


def caching_sha2(nonce: bytes, password: str = PASSWORD) -> bytes:
    """caching_sha2_password's answer."""
    once = hashlib.sha256(password.encode()).digest()
    mask = hashlib.sha256(hashlib.sha256(once).digest() + nonce).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True))


@dataclass(slots=True)
class Server:
    """What it greets with, to which plugin it switches (none: ""), and whose password it knows."""

    version: str
    plugin: str
    switch: str = ""
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await self._login(reader, writer):
                while True:
                    await self._receive(reader)
                    await self._send(writer, 1, OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _login(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        greeting = b"\x0a" + self.version.encode() + b"\0" + struct.pack("<I", 7) + NONCE[:8] + b"\0"
        greeting += struct.pack("<HBHHB", _CAPABILITIES & 0xFFFF, 33, 2, _CAPABILITIES >> 16, 21) + bytes(10)
        greeting += NONCE[8:] + b"\0" + self.plugin.encode() + b"\0"
        await self._send(writer, 0, greeting)
        answer = await self._receive(reader)
        at = answer.index(b"\0", 32) + 1
        given, sequence = answer[at + 1 : at + 1 + answer[at]], 2
        makers: dict[str, Callable[[bytes], bytes]] = {
            "mysql_native_password": native,
            "caching_sha2_password": caching_sha2,
        }
        expected = makers[self.plugin](NONCE)
        if self.switch:
            await self._send(writer, sequence, b"\xfe" + self.switch.encode() + b"\0" + SECOND_NONCE + b"\0")
            given, sequence = await self._receive(reader), 4
            expected = makers[self.switch](SECOND_NONCE)
        plugin = self.switch or self.plugin
        if given != expected and plugin == "caching_sha2_password":
            # As a server does whose cache does not know the password: the whole of it is wanted, encrypted.
            await self._send(writer, sequence, b"\x01\x04")
            assert await self._receive(reader) == b"\x02"
            await self._send(writer, sequence + 2, b"\x01" + PUBLIC_KEY)
            masked = PRIVATE_KEY.decrypt(await self._receive(reader), OAEP)
            given = bytes(a ^ b for a, b in zip(masked, (SECOND_NONCE if self.switch else NONCE) * 9, strict=False))
            given, expected, sequence = given.rstrip(b"\0"), PASSWORD.encode(), sequence + 4
        elif given == expected and plugin == "caching_sha2_password":
            await self._send(writer, sequence, b"\x01\x03")
            sequence += 1
        if given != expected:
            await self._send(writer, sequence, b"\xff" + struct.pack("<H", 1045) + b"#28000Access denied for user 'u'")
            return False
        await self._send(writer, sequence, OK)
        return True

    async def _receive(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(4)
        return await reader.readexactly(int.from_bytes(head[:3], "little"))

    async def _send(self, writer: asyncio.StreamWriter, sequence: int, payload: bytes) -> None:
        writer.write(len(payload).to_bytes(3, "little") + bytes([sequence]) + payload)
        await writer.drain()


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[Address]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        yield Address("127.0.0.1", port, "u", PASSWORD, tls="disabled", connect_timeout=5)
    finally:
        listener.close()
        await listener.wait_closed()


@pytest.mark.parametrize(
    "server",
    [
        Server("5.7.44-log", "mysql_native_password"),
        Server("8.0.36", "caching_sha2_password"),
        Server("8.0.36", "caching_sha2_password", "mysql_native_password"),
        Server("8.4.0", "mysql_native_password", "caching_sha2_password"),
        Server("5.5.5-10.3.39-MariaDB", "mysql_native_password", "mysql_native_password"),
    ],
    ids=lambda server: f"{server.version} {server.plugin} {server.switch}".strip(),
)
async def test_a_server_of_another_version_lets_us_in(server: Server) -> None:
    async with listening(server) as address:
        connection = await SourceConnection.open(address)
        await connection.close()


@pytest.mark.parametrize("switch", ["mysql_native_password", "caching_sha2_password"])
async def test_a_wrong_password_after_a_switch_of_the_plugin_is_refused_with_its_remedy(switch: str) -> None:
    async with listening(Server("8.0.36", "caching_sha2_password", switch)) as address:
        wrong = Address(address.host, address.port, "u", "wrong", tls="disabled", connect_timeout=5)
        with pytest.raises(SourceMisconfigured, match="refuses user 'u'"):
            await SourceConnection.open(wrong)


async def test_something_that_is_no_mysql_server_is_said() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with pytest.raises(SourceError):
        await SourceConnection.open(Address("127.0.0.1", port, "u", "p", tls="disabled", connect_timeout=2))
    listener.close()
    await listener.wait_closed()
