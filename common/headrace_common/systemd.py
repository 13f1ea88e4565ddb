"""Reports the state of a process to systemd: the datagrams of sd_notify(3), without its library."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends to systemd's socket in NOTIFY_SOCKET; does nothing if there is none.

    A datagram that can't be sent is dropped: no work may stop because systemd does not receive."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0) -> None:
        # "@name" is a socket in Linux's abstract namespace, whose names begin with a zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds
        """Maximum seconds between two WATCHDOG=1; 0 if systemd does not expect them."""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Notifier:
        """Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        usec = env.get("WATCHDOG_USEC", "")
        ours = env.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        seconds = int(usec) / 1e6 if ours and usec.isascii() and usec.isdigit() else 0.0
        address = env.get("NOTIFY_SOCKET", "")
        return cls(address if address.startswith(("/", "@")) else "", seconds)

    def ready(self) -> None:
        """Reports that the start, or the reload, is complete."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Reports that the configuration is read again, until ready()."""
        # systemd needs the time, on the clock that cannot be set, to distinguish this reload from an older one.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Reports that the stop has begun."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """Reports that the process works."""
        if self.watchdog_seconds:
            self._send("WATCHDOG=1")

    def status(self, line: str) -> None:
        """Sends one line for `systemctl status`."""
        self._send("STATUS=" + " ".join(line.split()))

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(), self._address)
        except OSError:
            pass
