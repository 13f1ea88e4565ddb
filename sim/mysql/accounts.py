"""Accounts, their passwords and their privileges (MySQL manual, "Privileges Provided by MySQL"; the exchange of
caching_sha2_password's fast path and of mysql_native_password)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

NATIVE, SHA2 = "mysql_native_password", "caching_sha2_password"
ALL = "ALL PRIVILEGES"


@dataclass
class Account:
    """An account that may connect from everywhere. `everywhere` are its privileges on *.*, `on` those on databases, and
    on single tables as `database.table`."""

    name: str
    password: str
    everywhere: tuple[str, ...] = (ALL,)
    on: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def has(self, privilege: str, schema: str = "", table: str = "") -> bool:
        """Returns whether it has a privilege, on a table if one is given."""
        rights = [self.everywhere]
        if schema:
            rights += [self.on.get(schema, ()), self.on.get(f"{schema}.{table}", ())]
        return any(privilege in some or ALL in some for some in rights)

    def sees(self, schema: str, table: str) -> bool:
        """Returns whether information_schema shows a table."""
        return any(self.has(right, schema, table) for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE"))

    def grants(self) -> list[str]:
        """Returns the lines of SHOW GRANTS."""
        who = f"`{self.name}`@`%`"
        lines = [f"GRANT {', '.join(self.everywhere) or 'USAGE'} ON *.* TO {who}"]
        for place, rights in self.on.items():
            schema, _, table = place.partition(".")
            lines.append(f"GRANT {', '.join(rights)} ON `{schema}`.{f'`{table}`' if table else '*'} TO {who}")
        return lines

    def accepts(self, plugin: str, nonce: bytes, answer: bytes) -> bool:
        """Returns whether an answer to the nonce proves the password."""
        if not self.password:
            return not answer
        return answer == scramble(plugin, nonce, self.password.encode())


def scramble(plugin: str, nonce: bytes, password: bytes) -> bytes:
    """Returns the proof of a password that a client sends."""
    if plugin == NATIVE:
        once = hashlib.sha1(password).digest()
        mixed = hashlib.sha1(nonce + hashlib.sha1(once).digest()).digest()
    else:
        once = hashlib.sha256(password).digest()
        mixed = hashlib.sha256(hashlib.sha256(once).digest() + nonce).digest()
    return bytes(a ^ b for a, b in zip(once, mixed, strict=True))
