"""The monitor: asks each daemon over HTTP how it is, as an operator's monitoring does, and judges the answers."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import orjson

from headrace.model import State
from sim.daemon import MONITOR, PORT, SimDaemon
from sim.loop import Process

if TYPE_CHECKING:
    from sim.world import World

_EACH = 5.0
"""Seconds between two questions to a daemon."""
_LIMIT = 2.0
"""Seconds within which a daemon answers, unless it is frozen or hangs."""
_PATHS = ("/metrics", "/readyz", "/livez", "/readyz?destination=d1", "/health/d2", "/health/unknown")
"""What is asked besides /health, in turn."""
_STATE = re.compile(r'^headrace_state{destination="(\w+)",state="(\w+)"} 1.0$', re.MULTILINE)
_HEALTHY = re.compile(r'^headrace_healthy{destination="(\w+)"} ([01]).0$', re.MULTILINE)


class Monitor:
    """Asks from a host of its own, which no fault reaches."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._process = Process(world.loop, MONITOR)
        self._seen = dict[str, dict[str, str]]()
        """By daemon: the state of each destination in its last answer."""

    def start(self) -> None:
        """Begins to ask."""
        for daemon in self._world.daemons.values():
            self._world.spawn(self._watch(daemon), self._process.context())

    def states(self, destination: str) -> list[str]:
        """Returns what the daemons that answered last time said of a destination."""
        return [states[destination] for states in self._seen.values() if destination in states]

    async def _watch(self, daemon: SimDaemon) -> None:
        number = 0
        while True:
            await asyncio.sleep(_EACH)
            path, states = "/health", dict[str, str]()
            try:
                if (answer := await self._ask(daemon, path)) is not None:
                    states = self.judge_health(daemon, *answer)
                self._seen[daemon.name] = states
                if answer is not None:
                    path = _PATHS[number % len(_PATHS)]
                    number += 1
                    if (answer := await self._ask(daemon, path)) is not None:
                        self.judge(daemon, path, *answer)
            except (KeyError, TypeError, ValueError) as error:
                self._violation(daemon, path, f"is answered with {answer}: {error!r}")

    async def _ask(self, daemon: SimDaemon, path: str) -> tuple[int, bytes] | None:
        """Returns status and body; None if it does not answer, which is a violation if it must."""
        loop, process = self._world.loop, daemon.process
        freezes = -1 if process is None or process.frozen or not daemon.serves else process.freezes
        client = _Client(loop.create_future())
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(_LIMIT):
                transport, _ = await loop.create_connection(lambda: client, daemon.name, PORT)
                transport.write(
                    f"GET {path} HTTP/1.1\r\nhost: {daemon.name}:{PORT}\r\nconnection: close\r\n\r\n".encode()
                )
                return await client.answer
        except TimeoutError:
            why = f"has no answer after {_LIMIT:g} s"
        except OSError as error:
            why = f"fails: {error!r}"
        finally:
            if transport is not None:
                transport.abort()
            if not client.answer.cancel() and not client.answer.cancelled():
                client.answer.exception()  # else asyncio reports that nobody has looked
        if daemon.serves and process is daemon.process and process is not None and process.freezes == freezes:
            self._violation(daemon, path, why)
        return None

    def _violation(self, daemon: SimDaemon, path: str, text: str) -> None:
        self._world.checker.violation(f"{daemon.name}: GET {path} {text}")

    # -- what the answers must be, by docs/states.md and docs/health.md ------------------------------------------

    def judge_health(self, daemon: SimDaemon, status: int, body: bytes) -> dict[str, str]:
        page = orjson.loads(body)
        states = {name: str(one["state"]) for name, one in page["destinations"].items()}
        well = bool(states) and all(map(_healthy, states.values()))
        if status != (200 if well else 503) or page["status"] != ("ok" if well else "failing"):
            self._violation(daemon, "/health", f"is answered with {status} {page['status']} for {states}")
        if sorted(states) != sorted(self._world.plan.destinations) or page["node"] != daemon.name:
            self._violation(daemon, "/health", f"names {page['node']} and {states}")
        return states

    def judge(self, daemon: SimDaemon, path: str, status: int, body: bytes) -> None:
        if path == "/metrics":
            found, text = status, body.decode()
            states = dict(_STATE.findall(text))
            healthy = {name: value == "1" for name, value in _HEALTHY.findall(text)}
            right = healthy == {name: _healthy(state) for name, state in states.items()}
            expected = 200 if right and sorted(states) == sorted(self._world.plan.destinations) else 0
        else:
            page = orjson.loads(body)
            found, expected = status, _expected(path, page)
        if found != expected:
            self._violation(daemon, path, f"is answered with {status}: {body[:500]!r}")


def _expected(path: str, page: dict[str, Any]) -> int:
    """Returns the status that belongs to a body; 0 for a body that contradicts itself."""
    if path == "/health/unknown":
        return 404
    if path.startswith("/health/"):
        healthy = _healthy(page["state"])
        return 0 if page["healthy"] is not healthy else 200 if healthy else 503
    if "destination" in page and page["ready"] and not (page["role"] == "ACTIVE" and _healthy(page["state"])):
        return 0
    return 200 if page.get("ready", page.get("live")) else 503


def _healthy(state: str) -> bool:
    return State(state).healthy


class _Client(asyncio.Protocol):
    """Takes one answer, which ends with the connection."""

    def __init__(self, answer: asyncio.Future[tuple[int, bytes]]) -> None:
        self.answer = answer
        self._data = bytearray()

    def data_received(self, data: bytes) -> None:
        self._data += data

    def eof_received(self) -> None:
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        if self.answer.done():
            return
        if end and length is not None and len(body) == int(length[1]):
            self.answer.set_result((int(head.split()[1]), bytes(body)))
        else:
            self.answer.set_exception(ConnectionResetError("the answer is not complete"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc or ConnectionResetError("no answer"))
