"""Dead letters: their headers, the notes about those that were handled, and which are still open.

Kafka can't delete a single record. So the topic of dead letters also has notes: records without a value whose headers
say which dead letters were retried or discarded, when and by whom."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import structlog

from headrace_documents.dead_letters import MAX_REASON, Facts, subject

PREFIX = "headrace-dead-"
REASON = "headrace-dead-reason"
TOPIC = "headrace-dead-topic"
PARTITION = "headrace-dead-partition"
OFFSET = "headrace-dead-offset"
ID = "headrace-dead-id"
TIME = "headrace-dead-time"
BATCH = "headrace-dead-batch"
NOTE = "headrace-dead-note"
IDS = "headrace-dead-ids"
BY = "headrace-dead-by"
IDS_A_NOTE = 500
LINES, EVERY = 10, 60.0
"""Maximum lines about dead letters that a process writes in this many seconds. The counts have all of them."""
log = structlog.get_logger(__name__)

Header = tuple[str, bytes | None]
Handled = Literal["retried", "discarded"]


class DeadLetter(NamedTuple):
    """A dead letter: key and value as received, with headers for the reason and the origin."""

    key: bytes | None
    value: bytes | None
    headers: list[Header]


class Origin(NamedTuple):
    """The position of a message."""

    topic: str
    partition: int
    offset: int


def dead_letter_id(origin: Origin, reason: str, key: bytes | None, value: bytes | None) -> str:
    """Returns the same id for a dead letter that a batch writes a second time. It includes the content: a topic that
    was recreated has other messages at the same offsets."""
    digest = hashlib.sha256(reason.encode())
    for part in (key, value):
        digest.update(b"\0" if part is None else b"%d:" % len(part) + part)
    return f"{origin.topic}-{origin.partition}-{origin.offset}-{digest.hexdigest()[:8]}"


def dead_headers(
    headers: Sequence[Header], reason: str, origin: Origin, key: bytes | None, value: bytes | None, batch: int | None
) -> list[Header]:
    """Returns the headers of a dead letter: the message's own, and ours."""
    reason = reason[:MAX_REASON]
    ours = {
        REASON: reason,
        TOPIC: origin.topic,
        PARTITION: str(origin.partition),
        OFFSET: str(origin.offset),
        ID: dead_letter_id(origin, reason, key, value),
        TIME: _now(),
    }
    if batch is not None:
        ours[BATCH] = str(batch)
    return [*own_headers(headers), *((name, text.encode()) for name, text in ours.items())]


def own_headers(headers: Sequence[Header]) -> list[Header]:
    """Returns the message's own headers: those without ours."""
    return [(name, value) for name, value in headers if not name.startswith(PREFIX)]


def note_headers(what: Handled, ids: Sequence[str], by: str) -> list[Header]:
    """Returns the headers of a note."""
    texts = {NOTE: what, IDS: ",".join(ids), BY: by, TIME: _now()}
    return [(name, text.encode()) for name, text in texts.items()]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# -- which are open ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class OpenDeadLetter(Facts):
    """An open dead letter; key and value stay in Kafka."""

    origin: Origin
    batch: str
    places: dict[int, int] = field(default_factory=dict)
    """The offset of its newest copy in each partition of the dead-letter topic that has one."""

    def more(self) -> dict[str, Any]:
        topic, partition, offset = self.origin
        return {"topic": topic, "partition": partition, "offset": offset, "batch": self.batch}


class Fold:
    """Takes dead letters and notes, and keeps the open ones. Each partition must be taken in order; a note counts for
    the dead letters before it in its partition, so a dead letter that comes again later is open again."""

    def __init__(self) -> None:
        self.open: dict[str, OpenDeadLetter] = {}
        self._foreign: dict[int, int] = {}
        self.foreign = 0
        """Records that are neither dead letters nor notes."""

    def take(
        self,
        place: tuple[int, int],
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> None:
        """Takes the record at a partition and an offset of the dead-letter topic."""
        partition, offset = place
        reported = texts(headers)
        if NOTE in reported:
            for name in reported.get(IDS, "").split(","):
                self._close(name, partition)
            return
        letter = _open_dead_letter(reported, timestamp, key, value, headers)
        if letter is None:
            self.foreign += 1
            self._foreign.setdefault(partition, offset)
            return
        known = self.open.setdefault(letter.id, letter)
        known.places[partition] = offset

    def _close(self, name: str, partition: int) -> None:
        letter = self.open.get(name)
        if letter is not None and letter.places.pop(partition, None) is not None and not letter.places:
            del self.open[name]

    def floors(self, ends: Mapping[int, int], closed: Iterable[str] = ()) -> dict[int, int]:
        """Returns the offset in each partition before which all is handled. `ends` are those up to which was read;
        `closed` the dead letters that were handled since."""
        gone, floors = set(closed), dict(ends)
        for letter in self.open.values():
            if letter.id not in gone:
                for partition, offset in letter.places.items():
                    floors[partition] = min(floors[partition], offset)
        for partition, offset in self._foreign.items():
            floors[partition] = min(floors[partition], offset)
        return floors


def texts(headers: Sequence[Header]) -> dict[str, str]:
    """Returns our headers as texts."""
    return {name: (value or b"").decode("utf-8", "replace") for name, value in headers if name.startswith(PREFIX)}


def _open_dead_letter(
    reported: Mapping[str, str], timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
) -> OpenDeadLetter | None:
    try:
        origin = Origin(reported[TOPIC], int(reported[PARTITION]), int(reported[OFFSET]))
        reason = reported[REASON]
    except (KeyError, ValueError):
        return None
    table, shown = subject(key, value, dict(own_headers(headers)))
    return OpenDeadLetter(
        # Dead letters of earlier versions have neither id nor time.
        reported.get(ID) or dead_letter_id(origin, reason, key, value),
        reported.get(TIME) or datetime.fromtimestamp(max(0, timestamp) / 1000, UTC).isoformat(timespec="milliseconds"),
        table,
        shown,
        reason,
        len(value or b""),
        origin,
        reported.get(BATCH, ""),
    )


class _Lines:
    """Allows at most LINES lines in EVERY seconds."""

    def __init__(self) -> None:
        self._began, self._lines = -EVERY, 0
        self.left_out = 0
        """Lines left out since the last one."""

    def take(self, now: float) -> bool:
        """Returns whether a line may be written at `now`, on the monotonic clock."""
        if now - self._began >= EVERY:
            self._began, self._lines = now, 0
        self._lines += 1
        self.left_out += self._lines > LINES
        return self._lines <= LINES


_lines = _Lines()


def report(letter: DeadLetter) -> None:
    """Logs a dead letter. Of many, the first of each minute have a line; the next line has the number of those without
    one."""
    if not _lines.take(time.monotonic()):
        return
    left_out, _lines.left_out = _lines.left_out, 0
    said = texts(letter.headers)
    origin = {"topic": said[TOPIC], "partition": int(said[PARTITION]), "offset": int(said[OFFSET])}
    more = {"left_out": left_out} if left_out else {}
    log.warning("dead letter", id=said[ID], reason=said[REASON], **origin, **more)
