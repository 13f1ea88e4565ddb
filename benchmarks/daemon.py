"""The daemon as a user starts it, in a separate process, and its CPU and memory from /proc."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
POLL = 0.1
"""Seconds between two checks: each costs the daemon an answer to a request."""
_LIMIT_SECONDS = 900.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PACKAGES = ("common", "daemon")


@dataclass(frozen=True, slots=True)
class Version:
    """The headrace that is started: its sources, and the virtual environment with its dependencies."""

    root: Path = ROOT
    venv: Path = Path(sys.prefix)

    @property
    def knows_native(self) -> bool:
        """Returns whether it has [daemon] native: older versions are Python alone."""
        return (self.root / "daemon" / "headrace" / "native.py").exists()

    def command(self, config: Path) -> list[str]:
        """Returns the command line of a daemon."""
        return [str(self.venv / "bin" / "headrace"), "run", "--config", str(config)]

    def environment(self) -> dict[str, str]:
        """Returns an environment in which its own sources come before those of the virtual environment."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(str(self.root / one) for one in _PACKAGES)}


HERE = Version()


@dataclass(frozen=True, slots=True)
class Sample:
    """What a daemon had done and used at one time. CPU in seconds, memory in bytes."""

    clock: float
    cpu: float
    memory: int
    rows: int
    least: int
    """Rows of the destination with the fewest."""
    streaming: int
    """Number of destinations in that state."""


class Daemon:
    """A running daemon."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self._port, self._log = process, port, log
        self.samples: list[Sample] = []

    def destinations(self) -> dict[str, dict[str, Any]]:
        """Returns their parts of /health; {} while nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=30) as answer:
                body = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                body = error.read()
        except OSError:
            return {}
        found: dict[str, dict[str, Any]] = json.loads(body)["destinations"]
        return found

    def sample(self) -> Sample:
        """Returns a sample now. Raises SystemExit if the daemon has ended."""
        if self.process.poll() is not None:
            raise SystemExit(f"bench: the daemon has ended with {self.process.returncode}:\n{self.log()}")
        found = self.destinations().values()
        clock, (cpu, memory) = time.monotonic(), used(self.process.pid)
        rows = [int(one["rows"]) for one in found]
        streaming = sum(one["state"] == "STREAMING" for one in found)
        self.samples.append(Sample(clock, cpu, memory, sum(rows), min(rows, default=0), streaming))
        return self.samples[-1]

    def until(self, condition: Callable[[Sample], bool], poll: float = POLL) -> Sample:
        """Takes samples until one fits. Raises SystemExit if the daemon ends, or after too long."""
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not condition(sample := self.sample()):
            if time.monotonic() > deadline:
                raise SystemExit(f"bench: the daemon does not do its work: {self.destinations()}\n{self.log()}")
            time.sleep(poll)
        return sample

    def log(self) -> str:
        """Returns the end of its log."""
        return self._log.read_text(errors="replace")[-4000:]

    @property
    def state_bytes(self) -> int:
        """Returns the size of the files of its state store."""
        return sum(one.stat().st_size for one in (self._log.parent / "var").iterdir())

    @property
    def peak_mb(self) -> float:
        """Returns the peak memory of all samples."""
        return max(one.memory for one in self.samples) / 1e6


def used(pid: int) -> tuple[float, int]:
    """Returns seconds of CPU of a process and its children, and their memory; memory shared with others counts in
    proportion (PSS)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    memory = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0) * 1024
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread, or a child, may just have ended
            for child in (task / "children").read_text().split():
                more_cpu, more_memory = used(int(child))
                cpu, memory = cpu + more_cpu, memory + more_memory
    return cpu, memory


def free_port() -> int:
    """Returns an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    destinations: Mapping[str, Mapping[str, Any]], version: Version = HERE, settings: Mapping[str, Any] | None = None
) -> Iterator[Daemon]:
    """Yields a daemon with these destinations, then ends it without draining; `settings` is more of headrace.toml."""
    with TemporaryDirectory(prefix="bench-") as name:
        folder, port = Path(name), free_port()
        (folder / "destinations").mkdir()
        for key, sections in destinations.items():
            (folder / "destinations" / f"{key}.toml").write_text(toml(sections))
        main = {"http": {"listen": f"127.0.0.1:{port}"}, **(settings or {})}
        (folder / "headrace.toml").write_text(toml(main))
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                version.command(folder / "headrace.toml"),
                cwd=folder,
                env=version.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield Daemon(process, port, folder / "log")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns sections of keys whose values are texts, numbers and booleans, which JSON writes as TOML does, or
    sections."""
    lines = []
    for name, keys in sections.items():
        inner = {f"{name}.{key}": value for key, value in keys.items() if isinstance(value, Mapping)}
        lines += [f"[{name}]", *(f"{key} = {_value(v)}" for key, v in keys.items() if not isinstance(v, Mapping))]
        lines += [toml(inner)] if inner else []
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
