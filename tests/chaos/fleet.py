"""The daemons of the chaos suite: each a process in a folder of its own, started again when it ends by itself."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devstack.ports import free_port
from devstack.process import GuardedProcess
from tests.chaos.clock import Clock, faketime_library
from tests.chaos.servers import Links, Servers
from tests.support import eventually

REPOSITORY = Path(__file__).resolve().parents[2]
PATHS = f"{REPOSITORY}:{REPOSITORY / 'daemon'}"
FLOWING = ("STREAMING", "DEGRADED")
"""States in which changes flow."""
RESTART_SECONDS = 0.5
"""What systemd's RestartSec would be."""


@dataclass(frozen=True)
class Wanted:
    """One destination of every daemon; its topic has its name."""

    name: str
    schema: str
    delivery: str = "at_least_once"
    rows_per_message: int = 0
    in_flight: int = 1 << 20
    """max_in_flight_bytes: what a daemon that lost its lock may still send."""
    request_timeout: str = "10s"
    source: str = ""
    """More lines of [source]."""


def daemon_toml(node: str, port: int, links: Links, root: str, session_timeout: float, checkpoint: str) -> str:
    """headrace.toml of one daemon; without a root it has the embedded lock and store."""
    shared = f"""[zookeeper]
hosts = "{links.zookeeper_hosts}"
root = "{root}"
session_timeout = "{session_timeout:g}s"
"""
    return f"""
[daemon]
node = "{node}"
checkpoint_interval = "{checkpoint}"
drain_timeout = "5s"
{shared if root else ""}
[http]
listen = "127.0.0.1:{port}"
[log]
format = "json"
"""


def destination_toml(wanted: Wanted, links: Links) -> str:
    """The file of one destination, for the daemon with these ways."""
    exactly = 'delivery = "exactly_once"\ntransaction_timeout = "10s"' if wanted.delivery == "exactly_once" else ""
    return f"""
[source]
host = "{links.mysql.host}"
port = {links.mysql.port}
user = "canal"
password = "canal"
start = "earliest"
{wanted.source}
[filter]
include = "{wanted.schema}\\\\..*"
[route]
topic = "{wanted.name}"
[message]
rows_per_message = {wanted.rows_per_message}
[sink]
type = "kafka"
bootstrap_servers = "{links.bootstrap_servers}"
max_in_flight_bytes = {wanted.in_flight}
request_timeout = "{wanted.request_timeout}"
{exactly}
"""


class Daemon:
    """One `headrace run`. Faults come from one thread at a time for each daemon."""

    def __init__(self, node: str, folder: Path, settings: str, port: int, destinations: dict[str, str]) -> None:
        self.node, self.folder, self.port = node, folder, port
        (folder / "destinations").mkdir(parents=True)
        for name, text in destinations.items():
            (folder / "destinations" / f"{name}.toml").write_text(text)
        (folder / "headrace.toml").write_text(settings)
        self.log = folder / "log"
        self.broken = "none"
        self.clock = Clock(folder / "clock", faketime_library())
        self.wanted_up = False
        """Whether one that is gone has ended by itself."""
        self.own_ends: list[tuple[float, int]] = []
        """When it ended by itself, and how."""
        self._process: GuardedProcess | None = None
        self._mutex = threading.RLock()

    def start(self) -> None:
        with self._mutex:
            python = [sys.executable, "-m", "tests.chaos.entry", self.broken]
            command = [*self.clock.prefix, *python, "run", "--config", str(self.folder / "headrace.toml")]
            self._process = GuardedProcess(command, self.log, self.folder, {"PYTHONPATH": PATHS})
            self.wanted_up = True

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running()

    def kill(self) -> None:
        """SIGKILL."""
        with self._mutex:
            self.wanted_up = False
            if self._process is not None:
                self._process.kill()

    def freeze(self) -> None:
        """SIGSTOP."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def stop(self, limit: float = 30) -> int | None:
        """SIGTERM, and what it exits with; None when it had to be killed."""
        with self._mutex:
            self.wanted_up = False
            assert self._process is not None
            self._process.send(signal.SIGTERM)
            if self._process.wait(limit):
                return self._process.returncode
            self._process.kill()
            return None

    def start_again_if_ended(self) -> None:
        """What systemd does."""
        with self._mutex:
            if self.wanted_up and not self.running:
                assert self._process is not None
                self.own_ends.append((time.monotonic(), self._process.returncode or 0))
                self.start()

    def health(self, limit: float = 2) -> dict[str, Any]:
        """The destinations of /health by name; empty while nobody answers."""
        address = f"http://127.0.0.1:{self.port}/health"
        try:
            try:
                answer = urllib.request.urlopen(address, timeout=limit)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                body = json.load(answer)
        except (OSError, ValueError):  # also when the answer comes to no end
            return {}
        found: dict[str, Any] = body.get("destinations", {})
        return found

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Fleet:
    """Daemons n1, n2, ... of one cluster, with the same destinations."""

    def __init__(
        self,
        servers: Servers,
        folder: Path,
        destinations: Sequence[Wanted],
        *,
        root: str,
        broken: str = "none",
        session_timeout: float = 6.0,
        checkpoint: str = "500ms",
        nodes: int = 3,
    ) -> None:
        self.servers = servers
        self.daemons: dict[str, Daemon] = {}
        for number, links in enumerate(servers.links[:nodes], 1):
            node, port = f"n{number}", free_port()
            settings = daemon_toml(node, port, links, root, session_timeout, checkpoint)
            files = {wanted.name: destination_toml(wanted, links) for wanted in destinations}
            self.daemons[node] = Daemon(node, folder / node, settings, port, files)
            self.daemons[node].broken = broken
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper")

    def start(self) -> None:
        for daemon in self.daemons.values():
            daemon.start()
        self._keeper.start()

    def _keep(self) -> None:
        while not self._over.wait(RESTART_SECONDS):
            for daemon in self.daemons.values():
                daemon.start_again_if_ended()

    def links(self, node: str) -> Links:
        return self.servers.links[int(node[1:]) - 1]

    def status(self, node: str, destination: str) -> dict[str, Any]:
        """The destination's part of a daemon's /health; empty while it does not answer."""
        found: dict[str, Any] = self.daemons[node].health().get(destination, {})
        return found

    def active(self, destination: str) -> str:
        """The node that says that the destination flows there, of several the one with the highest epoch; else ""."""
        best, node = 0, ""
        for daemon in self.daemons.values():
            status = daemon.health(0.5).get(destination, {})
            if status.get("state") in FLOWING and status["epoch"] > best:
                best, node = status["epoch"], daemon.node
        return node

    def wait_active(self, destination: str, limit: float = 60, *, besides: str = "") -> str:
        """The node that runs the destination, another one than `besides`."""
        node = ""

        def is_active() -> bool:
            nonlocal node
            node = self.active(destination)
            return node not in ("", besides)

        eventually(is_active, limit, lambda: f"nobody runs {destination}\n{self.tails()}")
        return node

    def heal(self) -> None:
        """Every daemon runs, none is frozen, and all clocks are right."""
        for daemon in self.daemons.values():
            daemon.thaw()
            daemon.clock.set(0.0)
            if not daemon.running:
                daemon.start()

    def close(self) -> None:
        self._over.set()
        if self._keeper.is_alive():
            self._keeper.join()
        for daemon in self.daemons.values():
            daemon.kill()

    def tails(self) -> str:
        """What each daemon says of its health, and the end of its log."""
        return "\n".join(
            f"--- {node}: {json.dumps(daemon.health())}\n{daemon.tail()}" for node, daemon in self.daemons.items()
        )
