"""Where everything lies in ZooKeeper, below [zookeeper] root."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote


def part(name: str) -> str:
    """A daemon's name as a part of a path: a slash would be two, and a lone dot is refused."""
    return quote(name, safe="").replace(".", "%2E") if name.strip(".") == "" else quote(name, safe="@:+")


def node_name(part: str) -> str:
    """The daemon's name again."""
    return unquote(part)


@dataclass(frozen=True, slots=True)
class Paths:
    """The nodes of the cluster."""

    root: str

    @property
    def cluster(self) -> str:
        """Parent of the live daemons."""
        return f"{self.root}/cluster"

    def member(self, node: str) -> str:
        """Ephemeral: this daemon lives."""
        return f"{self.cluster}/{part(node)}"

    @property
    def drains(self) -> str:
        """Parent of the nodes that are to run nothing."""
        return f"{self.root}/drain"

    def drain(self, node: str) -> str:
        """Persistent: this daemon is to run nothing, before maintenance."""
        return f"{self.drains}/{part(node)}"

    @property
    def destinations(self) -> str:
        """Parent of the destinations."""
        return f"{self.root}/destinations"

    def destination(self, name: str) -> DestinationPaths:
        """The nodes of one destination."""
        return DestinationPaths(f"{self.destinations}/{name}")


@dataclass(frozen=True, slots=True)
class DestinationPaths:
    """The nodes of one destination."""

    base: str

    @property
    def running(self) -> str:
        """Ephemeral: who holds it."""
        return f"{self.base}/running"

    @property
    def epoch(self) -> str:
        """Persistent: the newest epoch. Its version is what writes are guarded by."""
        return f"{self.base}/epoch"

    @property
    def candidates(self) -> str:
        """Parent of those that hold it or wait for it."""
        return f"{self.base}/cluster"

    def candidate(self, node: str) -> str:
        """Ephemeral: this daemon holds it or waits for it."""
        return f"{self.candidates}/{part(node)}"

    @property
    def move(self) -> str:
        """Persistent: who is to have it next."""
        return f"{self.base}/move"

    @property
    def position(self) -> str:
        """Persistent: the confirmed position."""
        return f"{self.base}/position"

    @property
    def schema(self) -> str:
        """Parent of the schema history's pieces."""
        return f"{self.base}/schema"

    def piece(self, number: int) -> str:
        """One piece of the schema history."""
        return f"{self.schema}/{number:010d}"

    @property
    def history(self) -> str:
        """Parent of the position history's slots."""
        return f"{self.base}/history"

    def slot(self, name: str) -> str:
        """One slot of the position history."""
        return f"{self.history}/{name}"
