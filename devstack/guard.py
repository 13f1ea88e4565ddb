"""Runs one server and ends it when the process that started it is gone, however that process died.

It is started by file name in an isolated interpreter (`python -I -S guard.py CONTROL STATUS -- command...`), so it
imports the standard library only and starts in a few milliseconds. Each byte on CONTROL is a signal number; end of file
there means that the parent is dead. STATUS has one line for each event: `pid N`, `sent N`, `exit N`. PR_SET_PDEATHSIG
alone is not enough for the parent: it fires when the *thread* that forked ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
# a forked child of the parent may have a copy of the pipe, so the parent's id is checked too
PARENT_CHECK_SECONDS = 1.0


def die_with_guard() -> None:
    """Runs in the child before exec: if the guard itself is killed, the kernel kills the server."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def kill_group(pid: int, number: int) -> None:
    """Signals the server with all its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def has_ended(pid: int) -> bool:
    """Returns whether the server has exited; it stays a zombie, so its group id can't be reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def main(argv: list[str]) -> int:
    """Starts the command and serves the two pipes until it has ended."""
    control, status = int(argv[0]), int(argv[1])
    command = argv[3:]
    parent = os.getppid()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    # handlers, not SIG_IGN: an ignored signal would stay ignored in the server
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(ignored, lambda *_: None)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def report(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(status, text.encode() + b"\n")

    try:
        child = subprocess.Popen(command, process_group=0, preexec_fn=die_with_guard)
    except OSError as error:
        report(f"error {error}")
        return 127
    report(f"pid {child.pid}")
    while not has_ended(child.pid):
        readable, _, _ = select.select([control, wake_read], [], [], PARENT_CHECK_SECONDS)
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
        orders = os.read(control, 4096) if control in readable else None
        if orders == b"" or stopping or os.getppid() != parent:
            kill_group(child.pid, signal.SIGKILL)
            break
        for number in orders or b"":
            kill_group(child.pid, number)
            report(f"sent {number}")
    # the leader may leave children; they are ended before its id can be reused
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    kill_group(child.pid, signal.SIGKILL)
    report(f"exit {child.wait()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
