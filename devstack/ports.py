"""Finds free ports on loopback, finds a process's listening ports, and reads NAME=PORT from the command line."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
from pathlib import Path

from devstack.errors import BadRequest

HOST = "127.0.0.1"
LOWEST = 15000
LISTEN = "0A"  # the state in /proc/net/tcp
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_mutex = threading.Lock()


def _first_ephemeral() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def is_free(port: int) -> bool:
    """Returns whether a server could listen there now; port 0 asks the kernel and is always free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _hold(wanted: set[int]) -> bool:
    """Reserves the ports on this machine until this process ends; returns whether nobody else has one of them.

    The port of a server that is down for a restart looks free to the other processes of a test run. A name in the
    kernel's table of abstract sockets says that it is not, and leaves nothing behind."""
    names = [socket.socket(socket.AF_UNIX) for _ in wanted]
    try:
        for port, name in zip(wanted, names, strict=True):
            name.bind(f"\0devstack-port-{port}")
    except OSError:
        for name in names:
            name.close()
        return False
    for name in names:
        name.detach()  # stays open, and the name taken, until the process ends
    return True


def free_port(also: int = 0) -> int:
    """Returns an unused port that no process on this machine was given before and may still use; the one at the
    distance `also` from it is free too, and given out with it.

    Taken from below the ephemeral range if possible: the kernel assigns ephemeral ports to outgoing connections, and
    one of those could use the port of a server that is down for a restart."""
    top = _first_ephemeral()
    with _mutex:
        for _ in range(1000):
            if top > LOWEST + 5000:
                port = random.randrange(LOWEST, top)
            else:
                with socket.socket() as probe:
                    probe.bind((HOST, 0))
                    port = int(probe.getsockname()[1])
            wanted = {port, port + also}
            if all(is_free(number) for number in wanted) and _hold(wanted):
                return port
    raise BadRequest("no free port was found on 127.0.0.1.")


def listeners(pid: int) -> list[tuple[str, int]]:
    """Returns addresses and ports on which a process listens for TCP connections, as the kernel lists them."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(os.readlink(entry))
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        lines = Path(f"/proc/{pid}/net/{table}")
        for line in lines.read_text().splitlines()[1:] if lines.exists() else ():
            columns = line.split()
            if columns[3] == LISTEN and f"socket:[{columns[9]}]" in inodes:
                address, port = columns[1].split(":")
                # written as 32-bit numbers in the machine's own byte order
                words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
                found.append((socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16)))
    return found


def parse_ports(values: list[str], known: list[str]) -> dict[str, int]:
    """Returns `["mysql=3306"]` as `{"mysql": 3306}`; an error of one sentence for anything else."""
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
