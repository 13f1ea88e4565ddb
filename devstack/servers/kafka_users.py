"""Accounts of a running Kafka cluster for SASL SCRAM, created as kafka-configs.sh does it, without a virtual
machine."""

from __future__ import annotations

import hashlib
import os
import socket
import struct

from devstack.errors import StartFailed

_ALTER_USER_SCRAM_CREDENTIALS = 51
_MECHANISMS = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
_ITERATIONS = 4096


def add_user(host: str, port: int, user: str, password: str, mechanism: str) -> None:
    """Adds or changes an account, through a listener without SASL. Raises StartFailed.

    The bytes are those of AlterUserScramCredentialsRequest, version 0, in Kafka's protocol guide (KIP-554).
    """
    number, digest = _MECHANISMS[mechanism]
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, _ITERATIONS)
    body = bytes([1, 2])  # no deletions; one upsertion, in an array whose length is written as one more
    body += _compact(user.encode()) + struct.pack(">bi", number, _ITERATIONS) + _compact(salt) + _compact(salted)
    body += bytes([0, 0])  # no tagged fields, of the upsertion and of the request
    head = struct.pack(">hhihb", _ALTER_USER_SCRAM_CREDENTIALS, 0, 1, -1, 0)
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(head + body)) + head + body)
        answer = _read(connection, struct.unpack(">i", _read(connection, 4))[0])
    # correlation id, tags, throttle time, array length, then the user's name and the result
    at = 4 + 1 + 4 + 1
    name_length = answer[at] - 1
    (code,) = struct.unpack_from(">h", answer, at + 1 + name_length)
    if code:
        raise StartFailed(f"Kafka does not take the account {user} (error {code}).")


def _compact(value: bytes) -> bytes:
    assert len(value) < 127
    return bytes([len(value) + 1]) + value


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (chunk := connection.recv(count - len(data))):
            raise StartFailed("Kafka closed the connection instead of an answer.")
        data += chunk
    return data
