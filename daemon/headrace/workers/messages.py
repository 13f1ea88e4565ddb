"""What the daemon and its workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.destination.requests import RequestRefused
from headrace.errors import HeadraceError
from headrace.ports.cluster import ClusterCounts
from headrace.settings.destination import Settings


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message to a worker."""

    number: int
    node: str
    """The name by which it takes part in a cluster."""
    address: str
    """Where operators find the daemon."""
    settings: Settings
    """With the worker's own destinations alone."""


@dataclass(frozen=True, slots=True)
class Call:
    """What the daemon asks of a worker, which answers each call under its number."""

    number: int
    method: str
    given: tuple[Any, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, as far as whoever asked tells errors apart."""

    refused: bool
    retriable: bool
    unexpected: bool
    message: str
    remedy: str
    reason: str
    section: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if not isinstance(error, HeadraceError):
            return cls(False, False, True, type(error).__name__, "", "", "")
        text = str(error.args[0]) if error.args else ""
        refused = isinstance(error, RequestRefused)
        return cls(refused, error.retriable, False, text, error.remedy, error.reason, error.section)

    def error(self) -> Exception:
        """The error again; of a fault of ours only its name is known, the worker's log has the details."""
        if self.unexpected:
            return RuntimeError(f"an unexpected error of a worker process: {self.message}")
        kind = RequestRefused if self.refused else HeadraceError
        made = kind(self.message, remedy=self.remedy, retriable=self.retriable)
        made.reason, made.section = self.reason, self.section
        return made


@dataclass(frozen=True, slots=True)
class Answer:
    """To the call with this number."""

    number: int
    value: Any = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a worker is now."""

    statuses: dict[str, dict[str, Any]]
    """What `mirror.facts_of` says of each destination."""
    cpu_seconds: float
    resident_bytes: int
    loop_delay: float
    """The largest of the last minute, in seconds."""
    counts: ClusterCounts | None


@dataclass(frozen=True, slots=True)
class Farewell:
    """Why a worker ends before its destinations have begun."""

    failure: Failure
