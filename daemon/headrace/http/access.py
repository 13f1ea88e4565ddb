"""Access control for changes over HTTP: the bearer of the token, over a connection that nobody can intercept."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from headrace import runtime


class Denied(Exception):
    """A refused request: status, a sentence, further headers of the answer, and what else it says."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(why)
        self.status, self.headers, self.page = status, dict(headers or {}), {"error": why, **more}


class Bucket:
    """A rate limit: allows `size` requests at once, and `rate` a second in the long run."""

    def __init__(self, size: float, rate: float, clock: Callable[[], float] = runtime.monotonic) -> None:
        self._size, self._rate, self._clock = size, rate, clock
        self._left, self._at = size, clock()

    def take(self) -> float:
        """Returns 0 if a request may proceed, else the seconds until the next may."""
        now = self._clock()
        self._left = min(self._size, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0


class Access:
    """The access control of one server. The rates are those of all clients together: there is one operator, not
    thousands."""

    def __init__(
        self, token: str, *, allow_plain: bool = False, clock: Callable[[], float] = runtime.monotonic
    ) -> None:
        """`token`: the required token; "" refuses all. `allow_plain`: also allow connections without TLS from other
        machines."""
        self._token, self._allow_plain = token.encode(), allow_plain
        self._commands, self._failures = Bucket(20, 5, clock), Bucket(10, 1, clock)

    def check(self, scope: Mapping[str, Any]) -> None:
        """Checks a request. `scope` is that of ASGI. Raises Denied."""
        if not self._allow_plain and scope.get("scheme") != "https" and not is_local(scope):
            raise Denied(
                403,
                "commands from other machines need TLS: set [http] tls_certificate and tls_key, or allow_plain = true "
                "where the network is your own",
            )
        headers = {name.lower(): value for name, value in scope["headers"]}
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if not self._token or scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            self._limit(self._failures)
            raise Denied(
                401, "commands need the daemon's token: authorization: Bearer TOKEN", {"www-authenticate": "Bearer"}
            )
        self._limit(self._commands)

    def _limit(self, bucket: Bucket) -> None:
        if wait := bucket.take():
            raise Denied(429, "too many commands at a time", {"retry-after": str(int(wait) + 1)})


def is_local(scope: Mapping[str, Any]) -> bool:
    """Returns whether the request comes from this machine: then both ends of the connection have the same address."""
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback or client[0] == server[0]
    except ValueError:
        return False
