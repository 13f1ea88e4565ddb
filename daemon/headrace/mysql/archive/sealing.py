"""Encryption of an archive's objects (AES-256-GCM), and their checks against damage."""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from headrace import runtime
from headrace.errors import ArchiveDamaged, ArchiveError

_SEALED = b"\x89HRS1"
"""The begin of sealed data. Neither JSON nor a zstd frame begins with these bytes."""
_NONCE = 12


class Seal:
    """Encrypts and decrypts pieces of data. `key` has 32 bytes; without a key nothing is encrypted. `name` names a
    piece: it is authenticated too, so that pieces can't be exchanged."""

    def __init__(self, key: bytes | None = None) -> None:
        self._cipher = None if key is None else AESGCM(key)

    def seal(self, data: bytes, name: str) -> bytes:
        """Returns the stored form."""
        if self._cipher is None:
            return data
        nonce = runtime.random().randbytes(_NONCE)
        return _SEALED + nonce + self._cipher.encrypt(nonce, data, name.encode())

    def open(self, data: bytes, name: str) -> bytes:
        """Returns the data of its stored form; data that was stored without a key is returned as it is. Raises
        ArchiveError."""
        if not data.startswith(_SEALED):
            return data
        if self._cipher is None:
            raise ArchiveError(f"{name} of the archive is encrypted", remedy="set [archive] key")
        nonce, body = data[len(_SEALED) : len(_SEALED) + _NONCE], data[len(_SEALED) + _NONCE :]
        try:
            return self._cipher.decrypt(nonce, body, name.encode())
        except InvalidTag:
            raise ArchiveDamaged(
                f"{name} of the archive can't be decrypted: it is damaged, or was encrypted with another key",
                remedy="check [archive] key; 'headrace archive verify DESTINATION' lists what is damaged",
            ) from None
