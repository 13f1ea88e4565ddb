"""The handle of one running server: start, stop, crash, freeze, restart, with a real health check."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from devstack import ports
from devstack.errors import PortTaken, StartFailed
from devstack.process import GuardedProcess
from devstack.progress import say

POLL_SECONDS = 0.05
BIND_ERRORS = ("ddress already in use", "BindException", "eaddrinuse", "Do you already have another")
_ENDED = (0, -signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
"""Return codes after our signals."""


class Server(ABC):
    """One server process. A subclass defines how to prepare its data, which command runs it, and when it is ready."""

    host = ports.HOST
    start_seconds = 90.0
    stop_seconds = 30.0

    def __init__(self, name: str, directory: Path, port: int | None) -> None:
        self.name = name
        self.directory = directory
        self.port_was_given = port is not None
        self.port = port if port is not None else ports.free_port()
        self.datadir = directory / "data"
        self.log_path = directory / "log"
        self._process: GuardedProcess | None = None
        self._log_start = 0
        self._began = 0.0

    @property
    def address(self) -> str:
        """Returns host:port."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Returns the process id of the running server; an error if it is down."""
        if self._process is None or not self._process.running():
            raise StartFailed(f"{self.name} is not running.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Returns whether the process exists; a frozen one does."""
        return self._process is not None and self._process.running()

    @abstractmethod
    def prepare(self) -> None:
        """Fills the data directory and writes configuration files; called once, before the first start."""

    @abstractmethod
    def command(self) -> list[str]:
        """Returns the command line that runs the server in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Returns whether the server answers its own protocol now."""

    def environment(self) -> Mapping[str, str]:
        """Returns variables to set for the server."""
        return {}

    def endpoint(self) -> dict[str, object]:
        """Returns what a user needs to connect, for `up --json`."""
        return {"host": self.host, "port": self.port}

    def log_since_start(self) -> str:
        """Returns what the server has logged since its last start."""
        try:
            with open(self.log_path, "rb") as handle:
                handle.seek(self._log_start)
                return handle.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def spawn(self) -> None:
        """Starts the process without waiting for it to be ready."""
        if self.running:
            return
        self._began = time.monotonic()
        if not self.datadir.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            self.prepare()
        if self.port_was_given and not ports.is_free(self.port):
            raise PortTaken(f"{self.name} can't listen on {self.address}: the port is in use.")
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._process = GuardedProcess(self.command(), self.log_path, self.directory, self.environment())

    def wait_ready(self) -> None:
        """Waits until the server answers; on failure stops it and shows the end of its log."""
        deadline = self._began + self.start_seconds
        while True:
            # checked in this order: an ended one can't become ready, and its log is then complete
            ended = not self.running
            if not ended and self.is_ready():
                break
            if ended or time.monotonic() > deadline:
                self._fail("ended before it was ready" if ended else f"was not ready in {self.start_seconds:.0f} s")
            time.sleep(POLL_SECONDS)
        say(f"{self.name} ready on {self.address} ({time.monotonic() - self._began:.1f} s)")

    def _fail(self, what: str) -> None:
        log = self.log_since_start()
        if self._process is not None:
            self._process.kill()
        if any(text in log for text in BIND_ERRORS):
            raise PortTaken(f"{self.name} can't listen on {self.address}: the port is in use.")
        raise StartFailed(f"{self.name} {what}; the last {self._show_log(20)} lines of its log are above.")

    def _show_log(self, most: int) -> int:
        """Shows the last lines since the start; returns how many."""
        tail = self.log_since_start().splitlines()[-most:]
        for line in tail:
            say(f"{self.name}: {line}")
        return len(tail)

    def start(self) -> None:
        """Starts the server (again) on the same port with the same data, and returns when it is ready."""
        self.spawn()
        self.wait_ready()

    def stop(self) -> None:
        """Sends TERM, waits, then sends KILL."""
        if self._process is not None:
            self._show_crash(self._process)
            self._process.stop(self.stop_seconds)

    def kill(self) -> None:
        """Simulates a crash: SIGKILL."""
        if self._process is not None:
            self._show_crash(self._process)
            self._process.kill()

    def _show_crash(self, process: GuardedProcess) -> None:
        """Shows the end of the log of a server that has ended by itself: it is removed with the server."""
        if not process.running() and process.returncode not in _ENDED:
            say(f"{self.name} has ended by itself, with {process.returncode}; the end of its log:")
            self._show_log(40)

    def freeze(self) -> None:
        """Sends SIGSTOP: connections stay open and nothing answers."""
        if self._process is not None:
            self._process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Sends SIGCONT: continues after freeze()."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)

    def restart(self) -> None:
        """Stops and starts; data and port stay."""
        self.stop()
        self.start()


class Cluster:
    """Several servers that are one service; its host and port are those of the first."""

    def __init__(self, name: str, servers: list[Server]) -> None:
        self.name = name
        self.servers = servers
        self.port_was_given = servers[0].port_was_given

    @property
    def host(self) -> str:
        """Returns the first server's host."""
        return self.servers[0].host

    @property
    def port(self) -> int:
        """Returns the first server's port."""
        return self.servers[0].port

    @property
    def log_path(self) -> Path:
        """Returns the first server's log."""
        return self.servers[0].log_path

    @property
    def datadir(self) -> Path:
        """Returns the first server's data directory."""
        return self.servers[0].datadir

    @property
    def pid(self) -> int:
        """Returns the first server's process id."""
        return self.servers[0].pid

    @property
    def address(self) -> str:
        """Returns host:port of every member, separated by commas."""
        return ",".join(server.address for server in self.servers)

    @property
    def running(self) -> bool:
        """Returns whether all members run."""
        return all(server.running for server in self.servers)

    def endpoint(self) -> dict[str, object]:
        """Returns what a user needs to connect, for `up --json`."""
        return {"host": self.host, "port": self.port, "servers": [server.address for server in self.servers]}

    def start(self) -> None:
        """Starts all members at once (none becomes ready without a majority) and waits for each."""
        for server in self.servers:
            server.spawn()
        for server in self.servers:
            server.wait_ready()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.servers[0].start_seconds
        while not condition():
            if time.monotonic() > deadline:
                raise StartFailed(f"{self.name}: the members run and did not find each other.")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Sends TERM, waits, then sends KILL, the last member first."""
        for server in reversed(self.servers):
            server.stop()

    def kill(self) -> None:
        """Simulates a crash of all members."""
        for server in self.servers:
            server.kill()

    def freeze(self) -> None:
        """Sends SIGSTOP to all members."""
        for server in self.servers:
            server.freeze()

    def thaw(self) -> None:
        """Sends SIGCONT to all members."""
        for server in self.servers:
            server.thaw()

    def restart(self) -> None:
        """Stops and starts all members; data and ports stay."""
        self.stop()
        self.start()
