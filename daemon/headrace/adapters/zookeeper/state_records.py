"""What the nodes of the ZooKeeper store hold: the head with the position, pieces of schema history, history slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import zstandard

from headrace.errors import StateStoreError
from headrace.model import Position
from headrace.ports.state import HistoryEntry, StateChange

LAYOUT = 1
"""The version of what is written here."""
PIECE = 350_000
"""Bytes of one piece of the schema history; a node may have about a million, and so may a request."""
_PLAIN = 4_000
"""Up to so many bytes a value is left as it is, for people who look into the nodes."""
_MAGIC = b"\x28\xb5\x2f\xfd"
RINGS = {"checkpoint": 60}
"""Slots of the position history for each actor."""
_RING = 200
CHECKPOINT_US = 60_000_000
"""Checkpoints enter the history once in so many microseconds; large ones less often, see Head.history_due()."""


def pack(value: Any) -> bytes:
    """JSON, compressed when it is long."""
    data = orjson.dumps(value)
    return data if len(data) <= _PLAIN else zstandard.compress(data, 3)


def unpack(data: bytes, path: str) -> Any:
    """What pack() wrote. Raises StateStoreError."""
    try:
        return orjson.loads(zstandard.decompress(data) if data.startswith(_MAGIC) else data)
    except (ValueError, zstandard.ZstdError) as error:
        raise damaged(path, repr(error)) from error


def damaged(path: str, what: str) -> StateStoreError:
    """The error for a node that does not hold what was written there."""
    error = StateStoreError(
        f"the ZooKeeper node {path} can't be read: {what}",
        remedy="headrace has left it as it is; restore it, or delete the nodes of this destination and give [source] "
        "start the position from the log",
    )
    error.retriable = False
    return error


@dataclass(frozen=True, slots=True)
class Head:
    """The node `position`."""

    position: Position | None = None
    epoch: int = 0
    version: int = 0
    """Of the position, as the guards have it; the node's own version counts the beginnings of epochs as well."""
    last_pos: int = 0
    pieces: int = 0
    """Of the schema history. Nodes beyond are what a write left behind that did not get through."""
    rings: dict[str, int] = field(default_factory=dict)
    """By actor: entries that its ring was given so far."""
    noted_us: int = 0
    """When a checkpoint last entered the history."""
    actor: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    changed_us: int = 0

    def encode(self) -> bytes:
        """The node's data."""
        return pack(
            {
                "layout": LAYOUT,
                "position": None if self.position is None else self.position.to_dict(),
                "epoch": self.epoch,
                "version": self.version,
                "last_pos": str(self.last_pos),
                "pieces": self.pieces,
                "rings": self.rings,
                "noted_us": self.noted_us,
                "actor": self.actor,
                "details": self.details,
                "changed_us": self.changed_us,
            }
        )

    @classmethod
    def decode(cls, data: bytes, path: str) -> Head:
        """Raises StateStoreError for anything but encode()'s."""
        raw = unpack(data, path)
        try:
            if raw["layout"] != LAYOUT:
                error = StateStoreError(
                    f"the ZooKeeper node {path} has layout {raw['layout']}, this headrace knows {LAYOUT}",
                    remedy="run the version of headrace that wrote it, or a later one",
                )
                error.retriable = False
                raise error
            return cls(
                position=None if raw["position"] is None else Position.from_dict(raw["position"]),
                epoch=int(raw["epoch"]),
                version=int(raw["version"]),
                last_pos=int(raw["last_pos"]),
                pieces=int(raw["pieces"]),
                rings={str(actor): int(count) for actor, count in raw["rings"].items()},
                noted_us=int(raw["noted_us"]),
                actor=str(raw["actor"]),
                details=dict(raw["details"]),
                changed_us=int(raw["changed_us"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise damaged(path, repr(error)) from error

    def moved(self, change: StateChange, pieces: int, now_us: int) -> Head:
        """After `change`, which adds `pieces` to the schema history."""
        return replace(
            self,
            position=change.position,
            version=self.version + 1,
            last_pos=self.last_pos if change.position is None else change.position.last_pos,
            pieces=self.pieces + pieces,
            actor=change.actor,
            details=change.details,
            changed_us=now_us,
        )

    def history_due(self) -> bool:
        """Whether this change enters the history. Every one of a person or a policy does; checkpoints come each second,
        and may have large GTID sets, which the servers keep in memory."""
        size = len(self.position.gtid_set) if self.position is not None else 0
        return self.actor != "checkpoint" or self.changed_us - self.noted_us >= CHECKPOINT_US * (1 + size // 16_000)

    def noted(self) -> tuple[Head, str]:
        """With the change in the history, and the name of its slot."""
        count = self.rings.get(self.actor, 0)
        slot = f"{self.actor}-{count % RINGS.get(self.actor, _RING):03d}"
        noted_us = self.changed_us if self.actor == "checkpoint" else self.noted_us
        return replace(self, rings={**self.rings, self.actor: count + 1}, noted_us=noted_us), slot

    def entry(self) -> bytes:
        """The change as a slot of the history holds it."""
        return pack(
            {
                "actor": self.actor,
                "epoch": self.epoch,
                "version": self.version,
                "position": None if self.position is None else self.position.to_dict(),
                "details": self.details,
                "changed_us": self.changed_us,
            }
        )


def read_entry(data: bytes, path: str) -> HistoryEntry:
    """What Head.entry() wrote. Raises StateStoreError."""
    raw = unpack(data, path)
    try:
        position = None if raw["position"] is None else Position.from_dict(raw["position"])
        return HistoryEntry(
            str(raw["actor"]), int(raw["epoch"]), int(raw["version"]), position, raw["details"], int(raw["changed_us"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, repr(error)) from error


def cut(entries: Sequence[dict[str, Any]]) -> list[bytes]:
    """Schema entries of one write as pieces: compressed together, and split. The first line of a piece says which of
    how many it is."""
    if not entries:
        return []
    whole = zstandard.compress(orjson.dumps(list(entries)), 6)
    parts = [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]
    return [b"%d/%d\n" % (number, len(parts)) + part for number, part in enumerate(parts, 1)]


def join(pieces: Iterable[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """What cut() was given, write after write. `pieces` are (path, data) in order. Raises StateStoreError."""
    entries: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for path, data in pieces:
        label, _, part = data.partition(b"\n")
        number, _, count = label.partition(b"/")
        if not (number.isdigit() and count.isdigit()) or int(number) != len(parts) + 1:
            raise damaged(path, f"it is piece {label[:40]!r}, and number {len(parts) + 1} was expected")
        parts.append(part)
        if len(parts) == int(count):
            try:
                entries += orjson.loads(zstandard.decompress(b"".join(parts)))
            except (ValueError, zstandard.ZstdError) as error:
                raise damaged(path, repr(error)) from error
            parts = []
    if parts:
        raise damaged("schema", "its last pieces are missing")
    return entries
