"""What the source has committed over its whole life, also what it has lost since, and where positions are in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.model import Position
from sim.mysql.gtids import Gtids
from sim.mysql.history import Committed as Transaction
from sim.mysql.server import Server
from sim.topic_checker import Committed

_ROWS_EVENTS = (30, 31, 32)
_LATER = "~", 0
"""The place of what a server never had: after everything that it had."""


@dataclass(slots=True)
class Event:
    """One rows event on the tables of the clients. `number` counts those of its transaction from 1; `file` and `offset`
    are where the transaction begins on the present server."""

    uuid: str
    transaction: int
    number: int
    commit_us: int
    """On the server that first committed it."""
    file: str
    """Empty if the present server's binlogs begin after it, as a replica's may."""
    offset: int
    gtid: bool = True
    """Whether the transaction has one; else `transaction` is a number that no server knows."""
    lost: bool = False
    """Whether the source lacks it now."""
    elsewhere: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The same as `file` and `offset`, on servers that were the source before, by their uuid."""

    @property
    def headrace_id(self) -> str:
        """Returns headrace-id, which is unique unless a server gives a number or place of a lost transaction again."""
        begin = f"{self.uuid}:{self.transaction}" if self.gtid else f"{self.uuid}/{self.file}:{self.offset}"
        return f"{begin}#{self.number}"

    @property
    def id(self) -> str:
        """Returns what is unique."""
        return f"{self.headrace_id}@{self.commit_us // 1000}"


class Truth:
    """All events, oldest first."""

    def __init__(self) -> None:
        self.events = list[Event]()
        self._known = 0
        """How many transactions of the server's history are read."""
        self._server = ""
        """The uuid of the present server."""
        self.lives = [0]
        """Where the events begin of each life: with each reset binlogs and GTIDs begin again."""
        self._names = dict[tuple[str, int], str]()
        """The ids of events, by headrace-id and the milliseconds of a commit, on any server."""
        self._found = dict[tuple[str, int], tuple[Position, Gtids, int]]()
        """Of each asker and begin of a life the last position, its GTIDs, and the number of an event up to which all
        are before every later position too."""

    def read(self, server: Server) -> list[Event]:
        """Reads what a server has committed since; returns the new events."""
        new, self._server = list[Event](), server.uuid
        for one in server.history[self._known :]:
            for event in events_of(one, gtid=server.engine.gtids):
                new.append(event)
                self._names[event.headrace_id, one.commit_us // 1000] = event.id
        self._known = len(server.history)
        self.events += new
        return new

    def changed(self, server: Server) -> None:
        """Compares with a server that may lack transactions now, or is another; call read() before it changes."""
        self._found.clear()
        has = {(one.uuid, one.number, one.original_us): one for one in server.history}
        for event in self.events[self.life :]:
            there = has.get((event.uuid, event.transaction, event.commit_us))
            event.lost = there is None
            event.elsewhere[self._server] = event.file, event.offset
            if there is not None:
                logged = not server.engine.purged.has(event.uuid, event.transaction)
                event.file, event.offset = (there.file, there.offset) if logged else ("", 0)
                self._names[event.headrace_id, there.commit_us // 1000] = event.id
        self._known, self._server = len(server.history), server.uuid

    def reset(self) -> None:
        """Notes that the server's binlogs and GTIDs begin again."""
        self.lives.append(len(self.events))

    def name(self, headrace_id: str, commit_ms: int) -> str:
        """Returns the id of the event of a message, and what is no event's id if there is none."""
        return self._names.get((headrace_id, commit_ms), f"{headrace_id}@{commit_ms}")

    @property
    def life(self) -> int:
        """Returns where the events of the present life begin."""
        return self.lives[-1]

    def index(self, position: Position, life: int = -1, asker: str = "") -> int:
        """Returns the number of the first event after a position of the present life, or a former one by number. The
        search begins where the `asker`'s last one has ended, if the position follows that one's."""
        begin, *later = self.lives[life:]
        end, done = later[0] if later else len(self.events), Gtids(position.gtid_set)
        last, passed, number = self._found.get((asker, begin), (position, done, begin))
        if not _follows(position, done, last, passed):
            number = begin
        while number < end and (self.events[number].lost or self._passed(self.events[number], position, done)):
            number += 1
        self._found[asker, begin] = position, done, number
        while number < end and (self.events[number].lost or self._before(self.events[number], position, done)):
            number += 1
        return number

    def since(self, index: int, absent: dict[str, None]) -> list[Committed]:
        """Returns the events from a number on. Those that are `absent` count as lost too."""
        return [Committed(event.id, 1, event.lost or event.id in absent) for event in self.events[index:]]

    def unstored(self, position: Position) -> list[Event]:
        """Returns what the source lacks now, if all of it comes after a position of the present life; else nothing: the
        position shows that the source has lost something."""
        done, lost = Gtids(position.gtid_set), [event for event in self.events[self.life :] if event.lost]
        return [] if any(self._before(event, position, done) for event in lost) else lost

    def absent(self) -> dict[str, None]:
        """Returns the ids of events that the source lacks now."""
        return {event.id: None for event in self.events if event.lost}

    def _passed(self, event: Event, position: Position, done: Gtids) -> bool:
        """Returns whether the transaction of an event is before a position."""
        if position.gtid_set:
            return done.has(event.uuid, event.transaction)
        return self._place(event, position) < (position.file, position.offset)

    def _before(self, event: Event, position: Position, done: Gtids) -> bool:
        if self._passed(event, position, done):
            return True
        here = self._place(event, position) == (position.file, position.offset)
        return here and event.number <= position.events_done

    def _place(self, event: Event, position: Position) -> tuple[str, int]:
        """Returns where an event is on the server that a position is of."""
        present = position.server_uuid == self._server
        return (event.file, event.offset) if present else event.elsewhere.get(position.server_uuid, _LATER)


def _follows(position: Position, done: Gtids, last: Position, passed: Gtids) -> bool:
    """Returns whether what is passed by the last position is so by this one too."""
    if position.gtid_set or last.gtid_set:
        return bool(last.gtid_set) and passed.within(done)
    same = last.server_uuid == position.server_uuid
    return same and (last.file, last.offset) <= (position.file, position.offset)


def events_of(transaction: Transaction, *, gtid: bool) -> list[Event]:
    """Returns the rows events of a transaction on the tables of the clients, named as headrace-id names them."""
    one = transaction
    if not one.changes or one.changes[0].schema != "shop":
        return []
    kinds = [part for part in one.parts if part[0] in _ROWS_EVENTS]
    numbers = range(1, len(kinds) + 1)
    return [Event(one.uuid, one.number, number, one.original_us, one.file, one.offset, gtid) for number in numbers]
