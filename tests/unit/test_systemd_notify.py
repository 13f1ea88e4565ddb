"""systemd's datagrams arrive at real sockets, in the file system and in the abstract namespace."""

import os
import socket
from pathlib import Path

import pytest

from headrace_common.systemd import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_datagrams_arrive(tmp_path: Path, abstract: bool) -> None:
    name = f"@headrace-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name[1:] if abstract else name)
        receiver.settimeout(10)
        notifier = Notifier.from_env({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"})
        assert notifier.watchdog_seconds == 30.0
        notifier.ready()
        notifier.status("two\nlines")
        notifier.watchdog()
        notifier.stopping()
        got = [receiver.recv(1000) for _ in range(4)]
    assert got == [b"READY=1", b"STATUS=two lines", b"WATCHDOG=1", b"STOPPING=1"]


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "@" + "x" * 300},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
    ],
)
def test_nobody_listening_is_no_error(env: dict[str, str]) -> None:
    notifier = Notifier.from_env(env)
    notifier.ready()
    notifier.watchdog()
    assert notifier.watchdog_seconds == 0


def test_a_full_socket_does_not_block(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        notifier = Notifier(str(tmp_path / "notify"))
        for _ in range(2000):
            notifier.status("x" * 100)


def test_a_watchdog_of_another_process_is_not_ours() -> None:
    assert Notifier.from_env({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_seconds == 0
    assert Notifier.from_env({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 1
