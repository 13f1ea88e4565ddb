"""By which names the daemon may be asked: a page of another site can have a name of its own lead here."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any

_PORT = re.compile(r":[0-9]*\Z")


class Hosts:
    """Browsers let the page of a site read what is under the site's name, whatever address the name has (DNS
    rebinding). A name that nobody else can give us is no such name: an address, localhost, and those of the
    configuration."""

    def __init__(self, listen: str, allowed: Iterable[str]) -> None:
        """`listen`: the host that [http] listen names; `allowed`: [http] allowed_hosts."""
        names = [_plain(name) for name in ("localhost", listen, *allowed) if name]
        self._any = "*" in names
        self._names = frozenset(names)
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))

    def refusal(self, scope: Mapping[str, Any]) -> str:
        """Why a request is not answered; "" for one that is. `scope` is that of ASGI. One without the header, as some
        load balancers ask, comes from no browser."""
        for name, value in scope["headers"]:
            if name.lower() == b"host" and not self.allows(value.decode("latin-1")):
                asked = ascii(value.decode("latin-1"))
                return f"this daemon does not answer for the host {asked}: name it in [http] allowed_hosts"
        return ""

    def allows(self, host: str) -> bool:
        """`host` is the header's value: a name or an address, with a port or without."""
        name = _plain(_PORT.sub("", host.strip()))
        if self._any or name in self._names:
            return True
        if name.endswith(self._suffixes) and not name.startswith("."):
            return True
        try:
            if name.startswith("[") and name.endswith("]"):
                ipaddress.IPv6Address(name[1:-1])
            else:
                ipaddress.IPv4Address(name)
        except ValueError:
            return False
        return True


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")
