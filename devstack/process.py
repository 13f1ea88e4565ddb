"""One guarded process: started and signalled through guard.py, never by name and never after its id is free."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from devstack.errors import StartFailed

GUARD = Path(__file__).with_name("guard.py")
ANSWER_SECONDS = 10.0
RUN_SECONDS = 600.0
FOREIGN = ("LD_", "PYTHON", "MYSQL_", "KAFKA_", "RABBITMQ_", "ERL_", "ROCKETMQ_", "NAMESRV_")


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment without our loader's or Python's settings, or a user's own, which could affect a
    server."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    environment.update(extra or {})
    return environment


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program and returns its exit status and output. If it does not end in time, it is killed and the status is
    124: some downloads wait for ever."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            cwd=folder,
            timeout=RUN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"FAILED: it has not ended after {RUN_SECONDS:.0f} s")


class GuardedProcess:
    """A server process that can't outlive this Python process."""

    def __init__(
        self, command: Sequence[str], log: Path, directory: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._mutex = threading.Lock()
        self._buffer = b""
        self.returncode: int | None = None
        control_read, self._control = os.pipe()
        self._status, status_write = os.pipe()
        try:
            with open(log, "ab") as output:
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(GUARD), str(control_read), str(status_write), "--", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=directory,
                    env=clean_environment(environment),
                    pass_fds=(control_read, status_write),
                    start_new_session=True,
                )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(control_read)
            os.close(status_write)
        self.pid = 0
        answer = self._next_line(ANSWER_SECONDS)
        if not answer.startswith("pid "):
            self._guard.wait()
            self._close()
            raise StartFailed(f"{command[0]} could not be run: {answer.removeprefix('error ') or 'no answer'}.")
        self.pid = int(answer.removeprefix("pid "))

    def _next_line(self, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._status], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._status, 4096) if ready else b""
            if not chunk:
                return ""
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode(errors="replace")

    def _close(self) -> None:
        for name in ("_control", "_status"):
            descriptor = getattr(self, name)
            if descriptor >= 0:
                setattr(self, name, -1)
                os.close(descriptor)

    def running(self) -> bool:
        """Returns whether the server still runs; a frozen one does."""
        with self._mutex:
            return self._running()

    def _running(self) -> bool:
        if self.returncode is not None:
            return False
        if self._guard.poll() is None:
            return True
        while line := self._next_line(0):
            if line.startswith("exit "):
                self.returncode = int(line.removeprefix("exit "))
        if self.returncode is None:
            self.returncode = -signal.SIGKILL
        self._close()
        return False

    def send(self, number: signal.Signals) -> None:
        """Signals the server with its children; done on return. Does nothing if it has ended."""
        with self._mutex:
            if not self._running():
                return
            try:
                os.write(self._control, bytes([number]))
            except BrokenPipeError:
                return
            while line := self._next_line(ANSWER_SECONDS):
                if line == f"sent {int(number)}":
                    return
                if line.startswith("exit "):
                    self.returncode = int(line.removeprefix("exit "))
                    self._guard.wait()
                    self._close()
                    return

    def wait(self, seconds: float) -> bool:
        """Waits until the server has ended; returns False if it still runs after that time."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return not self.running()

    def stop(self, seconds: float) -> None:
        """Sends TERM, then KILL if it does not end."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a frozen server can't react to TERM
        if not self.wait(seconds):
            self.kill()

    def kill(self) -> None:
        """Simulates a crash: KILL, and waits for the end."""
        self.send(signal.SIGKILL)
        if not self.wait(ANSWER_SECONDS):
            self._guard.kill()  # the kernel passes it on to the server
            self.wait(ANSWER_SECONDS)
