"""What the HTTP side is given by the daemon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.destination.handle import DestinationHandle
from headrace.destination.loop_delay import LoopDelay
from headrace.destination.status import DestinationStatus
from headrace.ports.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Facts:
    """The destinations, and what is known beside them."""

    handles: Mapping[str, DestinationHandle]
    """By name; live, on the same loop."""
    node: str
    config_errors: Sequence[str] = ()
    """Live: what was refused of files that changed while running."""
    cluster: Cluster | None = None
    delay: LoopDelay = field(default_factory=LoopDelay)
    """How late the event loop is."""
    native: str = ""
    """Which native code is used, or why none."""

    @property
    def statuses(self) -> dict[str, DestinationStatus]:
        """How each destination is."""
        return {name: handle.status for name, handle in self.handles.items()}


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
