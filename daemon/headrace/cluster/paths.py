"""Where everything is, below the root of the cluster."""

from __future__ import annotations

from urllib.parse import quote, unquote


def part(name: str) -> str:
    """A daemon's name as a part of a path: a slash would be two, and a lone dot is refused."""
    return quote(name, safe="").replace(".", "%2E") if name.strip(".") == "" else quote(name, safe="@:+")


def node_name(part: str) -> str:
    """The daemon's name again."""
    return unquote(part)


class Paths:
    """The nodes of the cluster."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.cluster = f"{root}/cluster"
        """Parent of the live daemons."""
        self.drains = f"{root}/drain"
        """Parent of the nodes that are to run nothing."""
        self.destinations = f"{root}/destinations"
        """Parent of the destinations."""

    def member(self, node: str) -> str:
        """Ephemeral: this daemon lives."""
        return f"{self.cluster}/{part(node)}"

    def drain(self, node: str) -> str:
        """Persistent: this daemon is to run nothing, before maintenance."""
        return f"{self.drains}/{part(node)}"

    def destination(self, name: str) -> DestinationPaths:
        """The nodes of one destination."""
        return DestinationPaths(f"{self.destinations}/{name}")


class DestinationPaths:
    """The nodes of one destination."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.running = f"{base}/running"
        """Ephemeral: who holds it."""
        self.epoch = f"{base}/epoch"
        """Persistent: the newest epoch. Its version is what writes are guarded by."""
        self.candidates = f"{base}/cluster"
        """Parent of those that hold it or wait for it."""
        self.move = f"{base}/move"
        """Persistent: who is to have it next."""
        self.hang = f"{base}/hang"
        """Persistent: where the event loop of a holder hung last."""
        self.position = f"{base}/position"
        """Persistent: the confirmed position."""
        self.schema = f"{base}/schema"
        """Parent of the schema history's pieces."""
        self.history = f"{base}/history"
        """Parent of the position history's slots."""

    def candidate(self, node: str) -> str:
        """Ephemeral: this daemon holds it or waits for it."""
        return f"{self.candidates}/{part(node)}"

    def piece(self, number: int) -> str:
        """One piece of the schema history."""
        return f"{self.schema}/{number:010d}"

    def slot(self, name: str) -> str:
        """One slot of the position history."""
        return f"{self.history}/{name}"
