"""Finds free ports on loopback, and reads NAME=PORT from the command line."""

from __future__ import annotations

import random
import socket
import threading
from pathlib import Path

from devstack.errors import BadRequest

HOST = "127.0.0.1"
LOWEST = 15000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_given: set[int] = set()
_mutex = threading.Lock()


def _first_ephemeral() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def is_free(port: int) -> bool:
    """Whether a server could listen there now; port 0 asks the kernel and is always free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port nobody listens on and that this process has not given out before.

    Taken from below the ephemeral range where there is room: the kernel hands ephemeral ports to outgoing connections,
    and one of those could sit on the port of a server that is down for a restart.
    """
    top = _first_ephemeral()
    with _mutex:
        for _ in range(1000):
            if top > LOWEST + 5000:
                port = random.randrange(LOWEST, top)
            else:
                with socket.socket() as probe:
                    probe.bind((HOST, 0))
                    port = int(probe.getsockname()[1])
            if port not in _given and is_free(port):
                _given.add(port)
                return port
    raise BadRequest("no free port was found on 127.0.0.1.")


def parse_ports(values: list[str], known: list[str]) -> dict[str, int]:
    """`["mysql=3306"]` as `{"mysql": 3306}`; one clear sentence for anything else."""
    ports: dict[str, int] = {}
    for value in values:
        name, separator, number = value.partition("=")
        if not separator or not number.isascii() or not number.isdigit() or not 1 <= int(number) <= 65535:
            raise BadRequest(f"--port wants NAME=PORT with a port from 1 to 65535, not '{value}'.")
        if name not in known:
            raise BadRequest(f"--port names '{name}', which is not among the servers to start: {', '.join(known)}.")
        if name in ports:
            raise BadRequest(f"--port is given twice for '{name}'.")
        ports[name] = int(number)
    return ports
