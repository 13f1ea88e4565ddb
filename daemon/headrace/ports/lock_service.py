"""The base of lock services: a session, and nodes by path that are read, watched and written under conditions.

What is made of it, locks, leases and the state store, is in `cluster`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import orjson

from headrace.errors import LockServiceError
from headrace.settings.adapters import ClusterSettings

Why = Literal["no_node", "node_exists", "bad_version", "not_empty", "no_auth", "other"]
Link = Literal["connected", "suspended", "lost"]
"""Lost: the session is over, and the next `connected` is that of another. Suspended: nobody knows."""


class ServiceError(LockServiceError):
    """The service can't be reached, or does not answer as it should."""

    reason = "lock_service"


class Refused(ServiceError):
    """The servers answered, and nothing was done. `index` is the operation of a multi that did not fit."""

    def __init__(self, message: str, why: Why, index: int = 0, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.why = why
        self.index = index


class Disconnected(ServiceError):
    """There is no connection at present; nothing was asked for."""


class OutcomeUnknown(ServiceError):
    """The connection broke, or the time was over, before the answer came: what was asked for may be done or not."""


class SessionOver(ServiceError):
    """The session that this was meant for has ended, and with it every ephemeral node."""


@dataclass(frozen=True, slots=True)
class Create:
    """A node that must not exist yet; the nodes above it are made when they are missing. An ephemeral one ends with the
    session. `public`: anybody may read and change it, where the service gives nodes to accounts."""

    path: str
    data: bytes
    ephemeral: bool = False
    public: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """New data for a node that has this version; -1: any."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """The node has this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes a node that has this version; -1: any."""

    path: str
    version: int = -1


Op = Create | Set | Check | Delete


@dataclass(frozen=True, slots=True)
class Node:
    """What a node holds. Each write gives it another `version`. `owner` is the session of an ephemeral node, 0 for
    others. `created` grows with every node that is made, whatever its path."""

    data: bytes
    version: int
    owner: int
    created: int


def read_json(data: bytes) -> dict[str, Any]:
    """An object that some daemon wrote; empty when it is none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


class LockService(ABC):
    """One session, and after its end the next. All calls but write_soon() are made in the event loop.

    `limit` is in seconds; a call raises OutcomeUnknown when the answer has not come by then, Disconnected, SessionOver
    or Refused. Reads show all that was written before the last sync() and all that this session wrote.
    """

    title: ClassVar[str]
    """The service's name for people."""
    name: str
    """That of its section, as in `ClusterSettings.service`."""
    address: str
    """Where its servers are, as the configuration says."""
    root: str
    """The path that everything of headrace's lies below."""
    timeout: float
    """The session timeout that is asked for, in seconds."""
    last_problem: str = ""
    """What the last attempt to connect failed with."""
    refusal: Refused | None = None
    """The error of the last attempt to connect, if a server rejected it. Attempts go on."""
    serves_others: bool = False
    """Whether clients of other systems read nodes of this service."""

    @abstractmethod
    def open(self, on_link: Callable[[Link, int, float], None]) -> None:
        """Begins to connect, and goes on until close(), with a new session after a lost one. `on_link` is called in the
        loop for each change, in order, with the session's number (0: none) and the timeout in seconds that the servers
        granted it. Raises LockServiceError when the settings can't be used."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the session, within a limit of its own. Never raises."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether a call can be made, as of now: ahead of `on_link`."""

    @abstractmethod
    async def get(self, path: str, limit: float, watch: Callable[[], None] | None = None) -> Node | None:
        """A node, or None. `watch` is called once, in the loop: when the node changes or goes, or comes when it is not
        there, and when the connection breaks."""

    @abstractmethod
    async def children(self, path: str, limit: float) -> list[str]:
        """Names below a node; none when it is not there."""

    @abstractmethod
    async def sync(self, limit: float) -> None:
        """Reads after it see all that was written before, by whomever. What a multi() of unknown outcome has not done
        by now, it never will."""

    @abstractmethod
    async def multi(self, operations: Sequence[Op], limit: float) -> list[int]:
        """All or nothing, within the present session. Returns the new version for each Create and Set, 0 for the
        others."""

    @abstractmethod
    async def prove(self, operations: Sequence[Op], limit: float) -> float:
        """As multi(), and what is more: once it has returned, the servers let the session live for the timeout at
        least, counted from the moment (monotonic clock, seconds) that this returns. A server that is cut off from the
        others can't make it return. Checks may be spread over several requests."""

    @abstractmethod
    def write_soon(self, path: str, data: bytes) -> None:
        """Writes a node, which is made when it is not there. May be called in any thread, also while the loop hangs: it
        waits for nothing, never raises, and what becomes of it nobody learns."""

    @abstractmethod
    async def problem(self, path: str, limit: float) -> str:
        """Why nodes below `path` can't be made, "" when they can. Makes nothing."""


class ClusterAdapter(ABC):
    """A lock service: its section of headrace.toml, and what is made of it. Registered under the section's name."""

    section: ClassVar[type[ClusterSettings]]

    @abstractmethod
    def service(self, settings: Any) -> LockService:
        """A new one, not open. `settings` are of `section`."""
