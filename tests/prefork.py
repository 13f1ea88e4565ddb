"""Processes of `headrace` without the second that its imports take: forked from one process that has done them.

A test's process starts that one at first use, by `python -m tests.prefork`, and passes it the arguments and the open
files of each `headrace` that it wants. What was started ends with the test's process, whatever ends that. SIGUSR1
makes it hang, and so does a row with the value of TEST_HANGS_ON, where that is in its environment.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

MOST = 1 << 20
"""Bytes of a request."""


class Forked:
    """One `headrace`, in a session of its own; the part of subprocess.Popen that tests use."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        """Where the exit status comes, as os.waitpid gives it."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._read()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("headrace", timeout or 0)
            self._read()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """SIGKILL to it and to what it started, and its end; harmless when it is gone."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def _read(self) -> None:
        answer = os.read(self._status, 4)
        os.close(self._status)
        assert answer, "the process that forks is gone"
        self.returncode = os.waitstatus_to_exitcode(int.from_bytes(answer, "little"))


class Forker:
    """The process that has imported headrace, as its user sees it."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.prefork", str(theirs.fileno())]
            root = Path(__file__).parents[1]
            # In a session of its own: a signal to the tests' group must not end it before it has ended what it started.
            self._process = subprocess.Popen(
                command, cwd=root, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._channel.settimeout(60)
        self._mutex = threading.Lock()

    def start(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], out: IO[Any], err: IO[Any]) -> Forked:
        request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
        status, theirs = os.pipe()
        try:
            with self._mutex:
                fds = [out.fileno(), err.fileno(), theirs]
                socket.send_fds(self._channel, [json.dumps(request).encode()], fds)
                answer = self._channel.recv(64)
        finally:
            os.close(theirs)
        assert answer, "the process that forks is gone"
        return Forked(int(answer), status)

    def close(self) -> None:
        """Ends it, and what it has started."""
        self._channel.close()
        self._process.wait(30)


@functools.cache
def forker() -> Forker:
    made = Forker()
    atexit.register(made.close)
    return made


def start(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], out: IO[Any], err: IO[Any]) -> Forked:
    """`headrace ARGUMENTS` with its output in two open files."""
    return forker().start(arguments, cwd, env, out, err)


def run(
    arguments: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """`headrace ARGUMENTS`, once it has ended; what it printed is text."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(arguments, cwd or Path.cwd(), os.environ if env is None else env, out, err)
        try:
            status = process.wait(timeout)
        except BaseException:
            process.send_signal(signal.SIGKILL)
            process.wait()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess(["headrace", *arguments], status, *texts)


class _Child(Exception):
    """Ends the loop in a process that was forked."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments


class _Serving:
    """The loop of the process that forks."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._running: dict[int, int] = {}
        """Where the exit status of each process is to go."""
        self._ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)

    def loop(self) -> None:
        """Returns when nobody is left who could ask for more."""
        while True:
            ready = select.select([self._channel, self._ended], [], [])[0]
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._reap()
            if self._channel in ready:
                data, fds, _, _ = socket.recv_fds(self._channel, MOST, 3)
                if not data:
                    return
                self._fork(json.loads(data), *fds)

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            target = self._running.pop(pid)
            os.write(target, status.to_bytes(4, "little"))
            os.close(target)

    def _fork(self, request: dict[str, Any], out: int, err: int, status: int) -> None:
        pid = os.fork()
        if not pid:
            self._become(request, out, err, status)
        self._running[pid] = status
        os.close(out)
        os.close(err)

    def _become(self, request: dict[str, Any], out: int, err: int, status: int) -> None:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))  # in the main thread, which is the event loop's
        os.dup2(out, 1)
        os.dup2(err, 2)
        for number in (out, err, status, self._ended, self._wake, *self._running.values()):
            os.close(number)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        # What a process makes up for itself at its import: two daemons forked from us would take each other for one.
        importlib.import_module("headrace.runtime").current().number = random.SystemRandom().getrandbits(64)
        if text := os.environ.pop("TEST_HANGS_ON", ""):
            _hang_on(text)
        self._channel.send(str(os.getpid()).encode())
        self._channel.close()
        raise _Child(request["arguments"])

    def end(self) -> None:
        """Ends what still runs."""
        for pid in self._running:
            os.killpg(pid, signal.SIGKILL)


def _hang_on(text: str) -> None:
    """A fault that ends no loop, in what makes messages."""
    builder: Any = importlib.import_module("headrace.pipeline.message_builder").MessageBuilder
    emit = builder.emit

    def hang(self: Any, change: Any) -> None:
        if any(text in row for row in change.rows):
            time.sleep(3600)
        emit(self, change)

    builder.emit = hang


def _import_all() -> None:
    """Everything but RocketMQ's client, which opens a log at its import."""
    import headrace

    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if "rocketmq" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("pydantic.v1")  # as FastAPI does with the first route


def _serve(channel: socket.socket) -> NoReturn:
    from headrace.cli.main import main

    _import_all()
    gc.freeze()  # what is never looked at is never copied
    serving = _Serving(channel)
    try:
        serving.loop()
    except _Child as child:
        arguments = child.arguments
    else:
        serving.end()
        os._exit(0)
    sys.argv = ["headrace", *arguments]
    try:
        status = main()
    except SystemExit as end:  # of argparse
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        status = 1
    # What Python would do next but for taking hundreds of modules apart, which costs more than many a command.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _serve(socket.socket(fileno=int(sys.argv[1])))
