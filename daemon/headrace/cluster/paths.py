"""The paths of all nodes, below the root of the cluster."""

from __future__ import annotations

from urllib.parse import quote, unquote


def part(name: str) -> str:
    """Returns a daemon's name as one part of a path: a slash would be two parts, and a lone dot is refused."""
    return quote(name, safe="").replace(".", "%2E") if name.strip(".") == "" else quote(name, safe="@:+")


def node_name(part: str) -> str:
    """Returns the daemon's name for a part."""
    return unquote(part)


class Paths:
    """The nodes of the cluster."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.cluster = f"{root}/cluster"
        """Parent of the live daemons."""
        self.drains = f"{root}/drain"
        """Parent of the nodes of drained daemons."""
        self.destinations = f"{root}/destinations"
        """Parent of the destinations."""

    def member(self, node: str) -> str:
        """Returns the ephemeral node that shows that this daemon is alive."""
        return f"{self.cluster}/{part(node)}"

    def drain(self, node: str) -> str:
        """Returns the persistent node that says that this daemon must run nothing, for example before maintenance."""
        return f"{self.drains}/{part(node)}"

    def destination(self, name: str) -> DestinationPaths:
        """Returns the nodes of one destination."""
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
        """Parent of the daemons that hold it or wait for it."""
        self.move = f"{base}/move"
        """Persistent: which daemon must get it next."""
        self.hang = f"{base}/hang"
        """Persistent: where the event loop of a holder last hung."""
        self.position = f"{base}/position"
        """Persistent: the confirmed position."""
        self.schema = f"{base}/schema"
        """Parent of the schema history's pieces."""
        self.history = f"{base}/history"
        """Parent of the position history's slots."""

    def candidate(self, node: str) -> str:
        """Returns the ephemeral node of a daemon that holds the destination or waits for it."""
        return f"{self.candidates}/{part(node)}"

    def piece(self, number: int) -> str:
        """Returns the node of one piece of the schema history."""
        return f"{self.schema}/{number:010d}"

    def slot(self, name: str) -> str:
        """Returns the node of one slot of the position history."""
        return f"{self.history}/{name}"
