"""A daemon that follows the server, and the comparison of what it publishes with the snapshots."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson

from tests.suites.feeder import MARKS
from tests.suites.replay import Replay, Snapshot
from tests.support import DaemonProcess, destination_toml

WAIT_SECONDS = 120.0
"""The messages of one test have to be there within this time."""
_CHUNK = 1 << 20


class Stop(Exception):
    """The destination has stopped; the text says why."""


class Follower:
    """One daemon with one destination, with native code or without."""

    def __init__(self, folder: Path, server: Any, name: str, *, native: str, whole: bool) -> None:
        self.name = name
        self.replay = Replay(whole=whole)
        self.memory: list[int] = []
        """Resident bytes of the daemon after each test."""
        self.made_by = ""
        """What makes the rows, as /health has it."""
        self.reached = 0
        """The last mark that came."""
        self._path = folder / f"{name}.jsonl"
        destination = destination_toml(
            server,
            "unused",
            f'type = "jsonl"\npath = "{self._path}"',
            source="" if whole else 'row_image = "any"',
            more='[message]\nbinary = "hex"',
        ).replace('include = "unused\\\\..*"', 'exclude = "(mysql|sys)\\\\..*"')
        self.daemon = DaemonProcess(folder / name, {name: destination}, settings=f'native = "{native}"', node=name)
        self._offset, self._rest = 0, b""

    def start(self) -> None:
        self.daemon.start()
        self.daemon.wait_state(self.name, "STREAMING", 60)
        self.made_by = str(self.daemon.health()[1]["native"])

    def follow(self, last: int, snapshots: dict[int, Snapshot]) -> None:
        """Replays messages up to a mark, and compares at each mark on the way. Raises Stop when the destination has
        stopped, and AssertionError when the messages do not come."""
        end, next_check = time.monotonic() + WAIT_SECONDS, time.monotonic() + 1.0
        while self.reached < last:
            lines = self._lines()
            for line in lines:
                self._line(line, snapshots)
            if lines:
                continue
            if time.monotonic() > next_check:
                next_check = time.monotonic() + 1.0
                status = self.daemon.health()[1].get("destinations", {}).get(self.name, {})
                if status.get("state") not in (None, "STREAMING", "STARTING", "CONNECTING", "DEGRADED", "STALLED"):
                    raise Stop(str(status.get("last_error") or status))
                assert time.monotonic() < end, f"mark {last} did not come; at {self.reached}; {status}"
            time.sleep(0.003)
        self.memory.append(resident(self.daemon.pid))

    def pass_over(self, file: str, offset: int, mark: int) -> None:
        """Continues at a position of the binlog, which is after this mark."""
        code, said = self.daemon.command("position", "set", self.name, f"{file}:{offset}", "--yes", "--read-schemas")
        assert code == 0, said
        while lines := self._lines():
            for line in lines:
                self._line(line, {})
        self.replay.forget()
        self.reached = mark

    def _lines(self) -> list[bytes]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_CHUNK)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def _line(self, line: bytes, snapshots: dict[int, Snapshot]) -> None:
        message = orjson.loads(line)
        if message["database"] != MARKS:
            self.replay.message(message)
        elif message["data"] and message["type"] == "UPDATE":
            self.reached = int(message["data"][0]["n"])
            if self.reached in snapshots:
                self.replay.compare(snapshots[self.reached])


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
