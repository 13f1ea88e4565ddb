"""The stored form of a destination's state, for stores that keep records: its head, its history, its pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import orjson
import zstandard

from headrace.errors import StateStoreError
from headrace.model import Position
from headrace.ports.state import HistoryEntry, StateChange

LAYOUT = 2
"""The version of this form. Up to 1 the schema history began with piece 0; such a head is still written while that is
true, so that a daemon of that version can read it."""
CHECKPOINT_US = 60_000_000
"""Minimum interval between checkpoints in the history, in microseconds; large ones come less often, see
Head.history_due()."""
_PLAIN = 4_000
"""Values of up to this many bytes are not compressed, so that people can read them in the store."""


class BrokenRecord(StateStoreError):
    """A record does not contain what was written to it."""

    retriable = False

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"the state record {name} can't be read: {why}",
            remedy="headrace has left it as it is; check whether somebody else writes there, and restore it, or delete "
            "the state of this destination and give [source] start the position from the log",
        )


@dataclass(frozen=True, slots=True)
class Head:
    """The record that the next change of a destination builds on."""

    position: Position | None = None
    epoch: int = 0
    version: int = 0
    """0: nothing was written yet."""
    last_pos: int = 0
    owner: str = ""
    """The process that took the destination over under `epoch`, if the store has no other way to know it."""
    first_piece: int = 0
    """The first valid piece of the schema history. Earlier ones are void, and are being removed."""
    pieces: int = 0
    """The number after its last piece. Later ones are left over from a write that failed."""
    rings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By actor: number of entries that were added to the history so far."""
    noted_us: int = 0
    """When a checkpoint last entered the history."""
    actor: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    changed_us: int = 0

    def encode(self) -> bytes:
        """Returns the record."""
        more = {"layout": 1, "last_pos": str(self.last_pos), "owner": self.owner, "pieces": self.pieces}
        if self.first_piece:
            more |= {"layout": LAYOUT, "first_piece": self.first_piece}
        return _pack(self._change() | more | {"rings": dict(self.rings), "noted_us": self.noted_us})

    @classmethod
    def decode(cls, data: bytes, name: str) -> Head:
        """Reads what encode() returned; `name` is the record's. Raises BrokenRecord."""
        try:
            raw = _unpack(data)
            if raw["layout"] not in range(1, LAYOUT + 1):
                raise ValueError(f"it has layout {raw['layout']}, and this headrace knows {LAYOUT}")
            rings = {str(actor): int(count) for actor, count in raw["rings"].items()}
            return cls(
                position=_position(raw),
                epoch=int(raw["epoch"]),
                version=int(raw["version"]),
                last_pos=int(raw["last_pos"]),
                owner=str(raw["owner"]),
                first_piece=int(raw.get("first_piece", 0)),
                pieces=int(raw["pieces"]),
                rings=MappingProxyType(rings),
                noted_us=int(raw["noted_us"]),
                actor=str(raw["actor"]),
                details=dict(raw["details"]),
                changed_us=int(raw["changed_us"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BrokenRecord(name, repr(error)) from error

    def moved(self, change: StateChange, pieces: int, now_us: int, *, void: bool = False) -> Head:
        """Returns the head after `change`, which adds `pieces` to the schema history; with `void` earlier pieces become
        void."""
        return replace(
            self,
            position=change.position,
            version=self.version + 1,
            last_pos=self.last_pos if change.position is None else change.position.last_pos,
            first_piece=self.pieces if void else self.first_piece,
            pieces=self.pieces + pieces,
            actor=change.actor,
            details=change.details,
            changed_us=now_us,
        )

    def history_due(self) -> bool:
        """Returns whether this change enters the history. Every change by a person or a policy does; checkpoints come
        each second, and may have large GTID sets."""
        size = self.position.size if self.position is not None else 0
        due = self.changed_us - self.noted_us >= CHECKPOINT_US * (1 + size // 16_000)
        return due or self.actor != "checkpoint" or self.actor not in self.rings

    def noted(self, ring: int) -> tuple[Head, str]:
        """Returns the head with the change in the history, and the name of the entry's slot. An actor has a ring of
        slots and one more for its first entry, because the schema history is known from there on."""
        count = self.rings.get(self.actor, 0)
        slot = f"{self.actor}-{count % ring:03d}" if count else f"{self.actor}-first"
        noted_us = self.changed_us if self.actor == "checkpoint" else self.noted_us
        return replace(self, rings=MappingProxyType({**self.rings, self.actor: count + 1}), noted_us=noted_us), slot

    def entry(self) -> HistoryEntry:
        """Returns the change as an entry of the history."""
        return HistoryEntry(self.actor, self.epoch, self.version, self.position, self.details, self.changed_us)

    def encode_entry(self) -> bytes:
        """Returns the change as the record of a slot."""
        return _pack(self._change())

    def _change(self) -> dict[str, Any]:
        return {
            "actor": self.actor,
            "epoch": self.epoch,
            "version": self.version,
            "position": None if self.position is None else self.position.to_dict(),
            "details": self.details,
            "changed_us": self.changed_us,
        }


def read_entry(data: bytes, name: str) -> HistoryEntry:
    """Reads what Head.encode_entry() returned. Raises BrokenRecord."""
    try:
        raw = _unpack(data)
        numbers = int(raw["epoch"]), int(raw["version"])
        return HistoryEntry(str(raw["actor"]), *numbers, _position(raw), dict(raw["details"]), int(raw["changed_us"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenRecord(name, repr(error)) from error


def encoded(value: Any) -> bytes:
    """Returns the JSON of a value, with `?` for halves of surrogate pairs, which UTF-8 lacks. Any text must be
    storable: a checkpoint that failed because of its content would fail on every retry, and rows would be published
    again and again."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def split(entries: Sequence[dict[str, Any]], size: int) -> list[bytes]:
    """Packs the schema entries of one write into compressed pieces of up to `size` bytes and a label. The first line of
    a piece is its number and the number of pieces."""
    if not entries:
        return []
    whole = zstandard.compress(encoded(list(entries)))
    parts = [whole[start : start + size] for start in range(0, len(whole), size)]
    return [b"%d/%d\n" % (number, len(parts)) + part for number, part in enumerate(parts, 1)]


def join(pieces: Iterable[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """Returns the entries that split() was given, write after write. `pieces` are (name, data) in order. Raises
    BrokenRecord."""
    entries: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for name, data in pieces:
        label, _, part = data.partition(b"\n")
        number, _, count = label.partition(b"/")
        if not (number.isdigit() and count.isdigit()) or int(number) != len(parts) + 1:
            raise BrokenRecord(name, f"it is piece {label[:40]!r}, and number {len(parts) + 1} was expected")
        parts.append(part)
        if len(parts) == int(count):
            try:
                entries += orjson.loads(zstandard.decompress(b"".join(parts)))
            except (ValueError, zstandard.ZstdError) as error:
                raise BrokenRecord(name, repr(error)) from error
            parts = []
    if parts:
        raise BrokenRecord("schema", "its last pieces are missing")
    return entries


def _position(raw: dict[str, Any]) -> Position | None:
    return None if raw["position"] is None else Position.from_dict(raw["position"])


def _pack(value: Any) -> bytes:
    data = encoded(value)
    return data if len(data) <= _PLAIN else zstandard.compress(data)


def _unpack(data: bytes) -> Any:
    try:
        return orjson.loads(data if data.startswith((b"{", b"[")) else zstandard.decompress(data))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
