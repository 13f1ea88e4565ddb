"""Processes of headrace that are forked: they print, end and die as those that a shell starts, and never outlive us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import prefork
from tests.support import DaemonProcess, eventually

NOBODY = """
[source]
host = "127.0.0.1"
port = 1
user = "canal"
password = "canal"
[route]
topic = "t"
[sink]
type = "null"
"""
PARENT = """
import sys
from pathlib import Path
from tests.support import DaemonProcess
daemon = DaemonProcess(Path(sys.argv[1]), {"shop": sys.argv[2]}).start()
daemon.wait("shop", lambda status: True)
print(daemon.pid, flush=True)
sys.stdin.read()
"""


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_output_and_exit_status_are_those_of_the_command(tmp_path: Path) -> None:
    done = prefork.run(["--version"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("headrace ")
    done = prefork.run(["check", "--config", str(tmp_path / "nothing.toml")], cwd=tmp_path, env={})
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing.toml: the file can't be read" in done.stderr
    done = prefork.run(["no-such-command"])
    assert done.returncode == 2
    assert "usage: headrace" in done.stderr


def test_a_daemon_ends_by_signals_as_any_process(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "daemon", {"shop": NOBODY}).start()
    try:
        assert os.getsid(daemon.pid) == daemon.pid
        daemon.wait("shop", lambda status: True)
        assert daemon.terminate() == 0
        daemon.start().wait("shop", lambda status: True)
        process: Any = daemon._process
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
    finally:
        daemon.kill()
    assert process.poll() == -signal.SIGKILL
    assert is_gone(daemon.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_daemon_outlives_the_process_that_started_it(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "daemon"), NOBODY]
    root = Path(prefork.__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.send_signal(number)
        parent.wait(30)
    eventually(lambda: is_gone(pid))
