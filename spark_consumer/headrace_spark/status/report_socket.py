"""Reports of tasks over the network, if the driver does not read the executors' standard error.

A report is a datagram, so that no task ever waits for the driver. A lost one is harmless: a task that waits reports
again at each attempt, one that works once a second. If none arrives, executors.py has some information."""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson
import structlog

from headrace_spark.errors import SessionError

log = structlog.get_logger(__name__)

_MOST = 8192
"""Maximum bytes of a report. A longer one is truncated and dropped."""
_TICK = 1.0
"""Seconds between two checks whether to end."""
_RESOLVE_AGAIN = 60.0
"""Seconds until an unresolved address is resolved again."""


class Address(NamedTuple):
    """The driver's address. It is sent to the tasks; reports without the token are ignored."""

    host: str
    port: int
    token: str


class ReportSocket:
    """The driver's side: a thread takes what arrives."""

    def __init__(self, host: str, bind: str, take: Callable[[dict[str, Any]], object]) -> None:
        """Listens at `bind`; executors send to `host`: the same as for Spark's own driver. Raises SessionError."""
        self._take, self.heard = take, False
        """Whether any report has come."""
        try:
            self._socket = socket.socket(socket.AF_INET6 if ":" in bind else socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.settimeout(_TICK)
            self._socket.bind((bind, 0))
        except OSError as error:
            raise SessionError(
                f"can't listen at {bind} for reports of executors: {error.strerror}; see spark.driver.bindAddress"
            ) from None
        self.address = Address(host, self._socket.getsockname()[1], secrets.token_hex(16))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reports of executors", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and closes the socket, which takes a moment."""
        self._end.set()

    def _run(self) -> None:
        with self._socket:
            while not self._end.is_set():
                try:
                    data, (sender, *_) = self._socket.recvfrom(_MOST)
                except TimeoutError:
                    continue
                self._hear(data, str(sender))

    def _hear(self, data: bytes, sender: str) -> None:
        try:
            event = orjson.loads(data)
            if hmac.compare_digest(str(event.pop("token")).encode(), self.address.token.encode()):
                self.heard = True
                # Two machines may have tasks of the same number.
                self._take({**event, "source": f"{event.get('source')} at {sender}"})
        except Exception as error:
            # Anybody who can reach the socket may send anything; the next report must still be read.
            log.debug("a report can't be read", reason=repr(error))


class Sender:
    """The task's side. It never waits, except to resolve the driver's name."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._socket: socket.socket | None = None
        self._tried = -_RESOLVE_AGAIN

    def close(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close()

    def send(self, event: dict[str, Any]) -> None:
        """Sends a report, if possible."""
        if self._socket is None:
            now = time.monotonic()
            if now - self._tried < _RESOLVE_AGAIN:
                return
            self._tried = now
            self._socket = _connected(self.address)
        if self._socket is not None:
            try:
                self._socket.send(orjson.dumps({**event, "token": self.address.token}))
            except OSError as error:
                # The next send reports that nothing listens; and the driver's end ends us too.
                log.debug("a report was not sent", reason=str(error))


def _connected(address: Address) -> socket.socket | None:
    try:
        family, _, _, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[0]
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.setblocking(False)
        made.connect(place)
    except OSError as error:
        log.warning(
            "reports of tasks can't be sent to the driver", driver=address.host, reason=error.strerror or str(error)
        )
        return None
    return made
