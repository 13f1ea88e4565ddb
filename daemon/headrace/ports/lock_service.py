"""The base of lock services: a session, and nodes by path that are read, watched and written conditionally.

Locks, leases and the state store are built on it in `cluster`."""

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
"""`lost`: the session is over, and the next `connected` is that of another. `suspended`: the state of the session is
unknown."""


class ServiceError(LockServiceError):
    """The service can't be reached, or does not answer as it should."""

    reason = "lock_service"


class Refused(ServiceError):
    """The servers answered, and nothing was done. `index` is the operation of a multi whose condition failed."""

    def __init__(self, message: str, why: Why, index: int = 0, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.why = why
        self.index = index


class Disconnected(ServiceError):
    """There is no connection at present; no request was sent."""


class OutcomeUnknown(ServiceError):
    """The connection broke, or the time limit passed, before the answer came. The request may or may not have been
    executed."""


class SessionOver(ServiceError):
    """The session of this call has ended, and with it every ephemeral node."""


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a node that must not exist; missing parents are created too. An ephemeral node ends with the session.
    `public`: anybody may read and change it, if the service restricts nodes to accounts."""

    path: str
    data: bytes
    ephemeral: bool = False
    public: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Writes new data to a node that has this version; -1: any version."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Requires a node to have this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a node that has this version; -1: any version."""

    path: str
    version: int = -1


Op = Create | Set | Check | Delete


@dataclass(frozen=True, slots=True)
class Node:
    """The data of a node. Each write changes its `version`. `owner` is the session of an ephemeral node, 0 for others.
    `created` increases with every node that is created, at any path."""

    data: bytes
    version: int
    owner: int
    created: int


def read_json(data: bytes) -> dict[str, Any]:
    """Returns a JSON object that some daemon wrote; {} if the data is not one."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


class LockService(ABC):
    """One session, and after its end the next. All calls but write_soon() are made in the event loop.

    `limit` is in seconds. A call raises OutcomeUnknown if the answer has not come by then, or Disconnected, SessionOver
    or Refused. Reads show everything that was written before the last sync() and everything that this session wrote."""

    title: ClassVar[str]
    """The service's name for people."""
    name: str
    """The name of its section, as in `ClusterSettings.service`."""
    address: str
    """The addresses of its servers, as configured."""
    root: str
    """The path that all of headrace's nodes are below."""
    timeout: float
    """The requested session timeout, in seconds."""
    last_problem: str = ""
    """The error of the last attempt to connect."""
    refusal: Refused | None = None
    """The error of the last attempt to connect, if a server rejected it. Attempts continue."""
    serves_others: bool = False
    """Whether clients of other systems read nodes of this service."""

    @abstractmethod
    def open(self, on_link: Callable[[Link, int, float], None]) -> None:
        """Starts to connect, and continues until close(), with a new session after a lost one. Calls `on_link` in the
        loop for each change, in order, with the session's number (0: none) and the timeout in seconds that the servers
        granted. Raises LockServiceError if the settings can't be used."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the session, within a time limit of its own. Never raises."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Returns whether a call can be made now. May change before `on_link` is called."""

    @abstractmethod
    async def get(self, path: str, limit: float, watch: Callable[[], None] | None = None) -> Node | None:
        """Returns a node; None if it does not exist. Calls `watch` once, in the loop: when the node is changed, deleted
        or created, or when the connection breaks."""

    @abstractmethod
    async def children(self, path: str, limit: float) -> list[str]:
        """Returns the names below a node; none if it does not exist."""

    @abstractmethod
    async def sync(self, limit: float) -> None:
        """Makes later reads see everything that anybody wrote before. A multi() of unknown outcome that has not been
        executed by now never will be."""

    @abstractmethod
    async def multi(self, operations: Sequence[Op], limit: float) -> list[int]:
        """Executes all operations or none, within the present session. Returns the new version for each Create and Set,
        0 for the others."""

    @abstractmethod
    async def prove(self, operations: Sequence[Op], limit: float) -> float:
        """Does what multi() does, and proves the session: when it returns, the servers keep the session alive at least
        for the timeout, counted from the returned moment (monotonic clock, seconds). A server that is cut off from the
        others can't make it return. Checks may be spread over several requests."""

    @abstractmethod
    def write_soon(self, path: str, data: bytes) -> None:
        """Writes a node, which is created if it does not exist. May be called in any thread, also while the loop hangs:
        it waits for nothing, never raises, and does not report the outcome."""

    @abstractmethod
    async def problem(self, path: str, limit: float) -> str:
        """Returns why nodes below `path` can't be created, "" if they can. Creates nothing."""


class ClusterAdapter(ABC):
    """A lock service: its section of headrace.toml and its client. Registered under the section's name."""

    section: ClassVar[type[ClusterSettings]]

    @abstractmethod
    def service(self, settings: Any) -> LockService:
        """Returns a new service, not open. `settings` are of type `section`."""
