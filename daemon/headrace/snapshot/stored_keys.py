"""The stored form of a row's key in a snapshot's progress: encrypted if keys may be masked."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from typing import Any

import orjson

from headrace import runtime
from headrace.ports.tables import Key

_MARK = "aes-gcm:"
"""Precedes encrypted keys. No reader's keys begin with it (ports/tables.py)."""
_NONCE = 12


class StoredKeys:
    """Encrypts keys if there is a secret, which every daemon of the destination has. A secret with no more entropy than
    the masks' salts protects them as well as those protect what is published."""

    def __init__(self, secret: bytes = b"") -> None:
        self._cipher: Any = None
        if secret:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(hashlib.blake2b(secret, digest_size=32, person=b"headrace-keys").digest())

    @property
    def plain(self) -> bool:
        """Returns whether keys are stored unencrypted."""
        return self._cipher is None

    def seal(self, key: Key | None) -> Key | None:
        """Returns the stored form of a key."""
        if self._cipher is None or key is None:
            return key
        nonce = runtime.random().randbytes(_NONCE)
        sealed = nonce + self._cipher.encrypt(nonce, orjson.dumps(key), None)
        return (_MARK + b64encode(sealed).decode(),)

    def open(self, stored: Key | None) -> Key | None:
        """Returns the key; None if the secret has changed since. A key that was stored unencrypted is returned
        unchanged."""
        if stored is None or len(stored) != 1 or not stored[0].startswith(_MARK):
            return stored
        if self._cipher is None:
            return None
        from cryptography.exceptions import InvalidTag

        sealed = b64decode(stored[0].removeprefix(_MARK))
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
        except InvalidTag:
            return None
        return tuple(orjson.loads(plain))
