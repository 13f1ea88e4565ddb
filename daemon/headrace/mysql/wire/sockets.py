"""Options of the sockets to a source: the kernel notices a silently lost peer in about 15 s."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

_OPTIONS = (
    ("SOL_SOCKET", "SO_KEEPALIVE", 1),
    # Names of Linux; another system may lack some, and then keeps its own times. First probe after 6 s without
    # traffic, then every 3 s; the connection is broken when 3 stay without an answer.
    ("IPPROTO_TCP", "TCP_KEEPIDLE", 6),
    ("IPPROTO_TCP", "TCP_KEEPINTVL", 3),
    ("IPPROTO_TCP", "TCP_KEEPCNT", 3),
    # The same for our bytes that are not acknowledged: without it the kernel repeats them for a quarter of an hour.
    ("IPPROTO_TCP", "TCP_USER_TIMEOUT", 15_000),
)


def tune(transport: Any) -> None:
    """Sets keepalive and user timeout (tcp(7)) on a transport's socket.

    They matter most while we do not read, because then none of our deadlines runs. The kernel answers for a source that
    is only slow, so none of this ends a working connection."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for level, name, value in _OPTIONS:
        if hasattr(socket, name):
            with contextlib.suppress(OSError):  # a system that knows the name and refuses it is no reason to stop
                sock.setsockopt(getattr(socket, level), getattr(socket, name), value)
