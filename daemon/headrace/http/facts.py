"""What the HTTP side is given by the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cluster.cluster import Cluster
from headrace.destination.status import DestinationStatus
from headrace.ports.cluster import ClusterCounts


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker process: its number, what it runs, and what it uses."""

    worker: int
    pid: int
    """0 while it does not run."""
    destinations: tuple[str, ...]
    restarts: int
    """How often it was started again after it had ended, or hung."""
    cpu_seconds: float
    """Since it was started."""
    resident_bytes: int
    loop_delay: float
    """The largest delay of its event loop in the last minute, in seconds."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The destinations' status objects, which are written on the same loop, and what is known beside them."""

    statuses: Mapping[str, DestinationStatus]
    node: str
    config_errors: Sequence[str] = ()
    """Live: what was refused of files that changed while running."""
    cluster: Cluster | None = None
    native: str = ""
    """Which native code is used, or why none."""
    counts: Callable[[], ClusterCounts] | None = None
    """What all workers have come to with the cluster service. None: what `cluster` itself counts."""
    workers: Callable[[], Sequence[WorkerFacts]] | None = None
    """The worker processes that run the destinations; None when this process does."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the server listens, and whom it hears."""

    token: str = field(default="", repr=False)
    """What commands have to bring along; "" refuses them all."""
    allow_plain: bool = False
    """Whether commands from other machines need no TLS."""
    allowed_hosts: Sequence[str] = ()
    """Names by which the daemon may be asked beside its address; see Hosts."""
    certificate: Path | None = None
    """PEM file; None: without TLS."""
    key: Path | None = None
