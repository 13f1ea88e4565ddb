"""How a destination's state lies in the compacted topic: the records of a change, and what they mean when read back.

Keys, the newest record of each counts:
    D/position              the state record: epoch, version, position, and how many pieces of schema history are valid
    D/schema/N              pieces of the schema history, from 0 on; a list of entries may span several pieces
    D/history/ACTOR/SLOT    position changes: the very first, and a ring of the last ones
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import orjson
import zstandard

from headrace.errors import StateStoreError
from headrace.model import Position

Record = tuple[bytes, bytes]

LAYOUT = 1
HISTORY_LENGTH = 500
"""Position changes kept for each actor besides its very first; that of checkpoints is at most one a minute."""
HISTORY_EVERY_US = 60_000_000
PIECE_BYTES = 700_000
"""Larger lists of entries are cut; a piece stays below the usual max.message.bytes."""
_PLAIN_BYTES = 16 * 1024
"""A larger state record (GTID sets, open XA transactions) is compressed."""
_MORE, _LAST = b"+", b"."


@dataclass(frozen=True, slots=True)
class Head:
    """What the next change of a destination builds on. `version` 0: nothing was written yet."""

    destination: str
    epoch: int = 0
    version: int = 0
    position: Position | None = None
    last_pos: int = 0
    owner: str = ""
    """The process that took the destination over under `epoch`."""
    schema: int = 0
    """Pieces of the schema history."""
    changes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By actor: position changes that went into the history so far."""
    noted_us: int = 0
    """When the last checkpoint went into it."""

    def begun(self, epoch: int, owner: str) -> tuple[Head, list[Record]]:
        """The destination taken over, nothing else changed."""
        head = replace(self, epoch=epoch, owner=owner)
        return head, [head._state_record("epoch", {}, _now_us())]

    def moved(
        self,
        position: Position | None,
        entries: Sequence[dict[str, Any]] = (),
        *,
        actor: str = "checkpoint",
        details: dict[str, Any] | None = None,
    ) -> tuple[Head, list[Record]]:
        """The head after a change, and the records to write for it in one transaction."""
        now, records = _now_us(), list[Record]()
        for i, piece in enumerate(_pieces(entries)):
            records.append((f"{self.destination}/schema/{self.schema + i}".encode(), piece))
        head = replace(
            self,
            version=self.version + 1,
            position=position,
            last_pos=self.last_pos if position is None else position.last_pos,
            schema=self.schema + len(records),
        )
        if actor != "checkpoint" or now - self.noted_us >= HISTORY_EVERY_US:
            number = self.changes.get(actor, 0)
            slot = "first" if not number else str(number % HISTORY_LENGTH)
            head = replace(
                head,
                changes=MappingProxyType({**self.changes, actor: number + 1}),
                noted_us=now if actor == "checkpoint" else self.noted_us,
            )
            key = f"{self.destination}/history/{actor}/{slot}".encode()
            records.append((key, head._json(actor, details or {}, now, {"number": number})))
        records.append(head._state_record(actor, details or {}, now))
        return head, records

    def _state_record(self, actor: str, details: dict[str, Any], now: int) -> Record:
        more = {"owner": self.owner, "schema": self.schema, "last_pos": str(self.last_pos)}
        return f"{self.destination}/position".encode(), self._json(actor, details, now, more)

    def _json(self, actor: str, details: dict[str, Any], now: int, more: dict[str, Any]) -> bytes:
        text = orjson.dumps(
            {
                "layout": LAYOUT,
                "epoch": self.epoch,
                "version": self.version,
                "position": None if self.position is None else self.position.to_dict(),
                "actor": actor,
                "details": details,
                "changed_us": now,
                **more,
            }
        )
        return text if len(text) <= _PLAIN_BYTES else zstandard.compress(text)


@dataclass(slots=True)
class Content:
    """All records of one destination, as they are read one after the other. Raises StateStoreError where they make no
    sense."""

    destination: str
    end: int = 0
    """The offset that was read to."""
    records: int = 0
    """How many were the destination's own."""
    _pieces: dict[int, bytes] = field(default_factory=dict)
    """Of the schema history."""
    _history: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _newest: bytes = b""
    """The state record, not parsed: only the last one counts."""

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        self.add(key, value)

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """One more record; those of other destinations are passed over."""
        if key is None or value is None:
            return
        name, _, rest = key.decode(errors="replace").partition("/")
        if name != self.destination:
            return
        self.records += 1
        kind, _, rest = rest.partition("/")
        try:
            if kind == "position":
                self._newest = value
            elif kind == "schema":
                self._pieces[int(rest)] = value
            elif kind == "history":
                actor, _, slot = rest.rpartition("/")
                self._history[actor, slot] = _parse(value)
        except (ValueError, KeyError, zstandard.ZstdError) as error:
            raise self._damaged(f"the record {key!r} can't be read ({error!r})") from error

    @property
    def head(self) -> Head:
        """What the next change builds on."""
        if not self._newest:
            return Head(self.destination)
        try:
            state = _parse(self._newest)
            checkpoints = [raw["changed_us"] for (actor, _), raw in self._history.items() if actor == "checkpoint"]
            changes: dict[str, int] = {}
            for (actor, _), raw in self._history.items():
                changes[actor] = max(changes.get(actor, 0), int(raw["number"]) + 1)
            return Head(
                self.destination,
                int(state["epoch"]),
                int(state["version"]),
                None if state["position"] is None else Position.from_dict(state["position"]),
                int(state["last_pos"]),
                str(state["owner"]),
                int(state["schema"]),
                MappingProxyType(changes),
                max(checkpoints, default=0),
            )
        except (KeyError, TypeError, ValueError, zstandard.ZstdError) as error:
            raise self._damaged(f"the position can't be read ({error!r})") from error

    def schema_entries(self) -> list[dict[str, Any]]:
        """The schema history in the order it was written."""
        entries: list[dict[str, Any]] = []
        count, part = self.head.schema, b""
        try:
            for number in range(count):
                piece = self._pieces[number]
                part += piece[1:]
                if piece[:1] == _LAST:
                    entries += orjson.loads(zstandard.decompress(part))
                    part = b""
        except (KeyError, ValueError, zstandard.ZstdError) as error:
            raise self._damaged(f"piece {number} of {count} of its schema series is lost or broken") from error
        return entries

    def history(self) -> list[dict[str, Any]]:
        """The position changes that are kept, newest first; `position` is a Position or None."""
        found = sorted(
            self._history.items(), key=lambda item: (item[1]["version"], item[1]["changed_us"]), reverse=True
        )
        try:
            return [
                {**raw, "actor": actor, "position": raw["position"] and Position.from_dict(raw["position"])}
                for (actor, _), raw in found
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"the history of positions can't be read ({error!r})") from error

    def _damaged(self, what: str) -> StateStoreError:
        error = StateStoreError(
            f"what the state topic keeps of {self.destination} is damaged: {what}",
            remedy="look whether its cleanup.policy is compact and somebody else writes to it",
        )
        error.retriable = False
        return error


def _pieces(items: Sequence[dict[str, Any]]) -> list[bytes]:
    if not items:
        return []
    packed = zstandard.compress(orjson.dumps(list(items)))
    cut = [packed[i : i + PIECE_BYTES] for i in range(0, len(packed), PIECE_BYTES)]
    return [_MORE + piece for piece in cut[:-1]] + [_LAST + cut[-1]]


def _parse(value: bytes) -> dict[str, Any]:
    raw = orjson.loads(value if value[:1] == b"{" else zstandard.decompress(value))
    if raw["layout"] != LAYOUT:
        raise ValueError(f"layout {raw['layout']}, this headrace knows {LAYOUT}")
    return dict(raw)


def _now_us() -> int:
    return time.time_ns() // 1000
