"""Checks the host name of requests, because a page of another site can have a name that resolves to this daemon."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any

import structlog

from headrace.errors import HeadraceError

_PORT = re.compile(r":[0-9]*\Z")
NAMES_LOGGED = 20
"""Maximum number of refused names that are logged: the client chooses them."""
_NAME_SHOWN = 100
"""Maximum characters of a refused name that are shown."""
RESOLVER_LIMIT = 2.0
"""Seconds that the resolver has to return the machine's full name."""

log = structlog.get_logger(__name__)


class NotOurHost(HeadraceError):
    """A request has a host name that is not known to be ours."""

    reason = "http"
    section = "when-the-answer-is-421"
    retriable = False


async def machine_names() -> set[str]:
    """Returns the machine's own name, and its full one as far as the resolver knows it. Nobody who publishes a page
    names the machine, so these are as safe as localhost. From the resolver only a longer form of that name is taken,
    because an alias may lead anywhere."""
    own = socket.gethostname()
    names = {own}
    with contextlib.suppress(OSError, UnicodeError, TimeoutError):
        async with asyncio.timeout(RESOLVER_LIMIT):
            for *_, full, _ in await asyncio.get_running_loop().getaddrinfo(own, None, flags=socket.AI_CANONNAME):
                if full.partition(".")[0].lower() == own.partition(".")[0].lower():
                    names.add(full)
    return names


class Hosts:
    """The accepted host names. Browsers let the page of a site read what is under the site's name, whatever address the
    name has (DNS rebinding). Names that nobody else can give us are safe: an address, localhost, and those of the
    configuration."""

    def __init__(self, listen: str, allowed: Iterable[str], machine: Iterable[str] = ()) -> None:
        """`listen`: the host in [http] listen; `allowed`: [http] allowed_hosts; `machine`: the machine's own names."""
        # No registry assigns names below localhost, and browsers do not resolve them.
        names = [_plain(name) for name in ("localhost", "*.localhost", listen, *machine, *allowed) if name]
        self._reported: set[str] = set()
        self._any = "*" in names
        self._names = frozenset(names)
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))

    def refusal(self, scope: Mapping[str, Any]) -> NotOurHost | None:
        """Returns why a request is refused; None if it is accepted. `scope` is that of ASGI. A request without the
        header, or with an empty one, as some load balancers and probes send, comes from no browser."""
        for name, value in scope["headers"]:
            if name.lower() == b"host" and not self.allows(value.decode("latin-1")):
                asked = ascii(value.decode("latin-1")[:_NAME_SHOWN])
                self._report(asked)
                return NotOurHost(f"this daemon does not answer for the host {asked}: name it in [http] allowed_hosts")
        return None

    def _report(self, asked: str) -> None:
        """Logs a refused name, once."""
        if asked in self._reported or len(self._reported) == NAMES_LOGGED:
            return
        self._reported.add(asked)
        last = "; further names are not logged" if len(self._reported) == NAMES_LOGGED else ""
        remedy = "if it is a name of this daemon, put it into [http] allowed_hosts"
        log.warning(f"a request for another host was answered with 421{last}", host=asked, remedy=remedy)

    def allows(self, host: str) -> bool:
        """Returns whether a name is accepted. `host` is the header's value: a name or an address, with or without a
        port; or empty."""
        if not (host := host.strip()):
            return True
        name = _plain(_PORT.sub("", host))
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
