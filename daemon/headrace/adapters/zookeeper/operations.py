"""What is asked of ZooKeeper, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Create:
    """A node that must not be there yet. `public`: anybody may read and change it, not only the user of [zookeeper]."""

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
    """Takes a node away that has this version; -1: any."""

    path: str
    version: int = -1


Op = Create | Set | Check | Delete


@dataclass(frozen=True, slots=True)
class Node:
    """What a node holds. `owner` is the session of an ephemeral node, 0 for others; `created` is the number of the
    transaction that made it, and grows throughout the ensemble."""

    data: bytes
    version: int
    owner: int
    created: int
    changed: int
    changed_ms: int
    """When the data was set last, by the servers' clock, in milliseconds since 1970."""


def read_json(data: bytes) -> dict[str, Any]:
    """An object that some daemon wrote; empty when it is none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
