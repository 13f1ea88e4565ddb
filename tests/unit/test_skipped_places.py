"""Any one place of a binlog may be unreadable, and the operator names what the error names: the other groups come whole
and under their own GTIDs, and a restart anywhere gives the same."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import NotUnderstood
from headrace.model import OpenXa, Position, RowsChange
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.schema.history import SchemaHistory
from tests.examples import examples
from tests.made_binlog import SID, Binlog, close_all, decoder, feed

BASE = 1_700_000_000_000_000
KINDS = ("plain", "two", "savepoint", "xa", "ddl", "compressed")
DAMAGE = ("checksum", "kind", "body")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield
    close_all()


class Log(Binlog):
    """Notes where each event begins, and its number; the one at `broken` is written so that it can't be read."""

    def __init__(self, broken: int = -1, damage: str = "") -> None:
        super().__init__()
        self.broken, self.damage = broken, damage
        self.events: list[tuple[int, int, int]] = []
        """Offset, number, and the group that it stands in."""
        self.group = -1

    def event(self, kind: int, body: bytes, **more: Any) -> None:
        if kind in (19, 30):  # a table has a number of its own in each group
            body = struct.pack("<I", 100 + self.group) + body[4:]
        if not more.get("artificial") and self.group >= 0:
            broken = len(self.events) == self.broken
            self.events.append((self.at, kind, self.group))
            if broken and self.damage == "checksum":
                more["flip"] = 1
            elif broken and self.damage == "kind":
                kind = 99
            elif broken:
                body = body[:5]
        super().event(kind, body, **more)


def write(kinds: list[str], broken: int = -1, damage: str = "") -> tuple[Log, dict[int, list[int]]]:
    """A log of groups, and the rows of each."""
    log = Log(broken, damage)
    log.begin_file()
    rows: dict[int, list[int]] = {}
    for number, kind in enumerate([*kinds, "plain"]):  # the last one shows where the one before ends
        log.group, gno, first = number, number + 1, number * 10
        log.gtid(gno, BASE + gno * 10)
        rows[number] = [first, first + 1]
        if kind == "ddl":
            rows[number] = []
            log.query(f"CREATE TABLE other{number} (id INT)")
            continue
        log.query("XA START X'61',X'',1" if kind == "xa" else "BEGIN")
        for n, key in enumerate(rows[number]):
            if kind == "savepoint":
                log.query(f"SAVEPOINT s{n}")
            if n == 0 or kind == "two":
                log.table()
            log.insert((key, "x"))
        if kind == "xa":
            log.query("XA END X'61',X'',1")
            log.event(38, struct.pack("<BiII", 1, 1, 1, 0) + b"a")  # in one phase
        else:
            log.event(16, struct.pack("<Q", gno))
    return log, rows


def read(log: Log, skip: set[str], start: Position | None = None) -> tuple[list[RowsChange], Position]:
    """Everything, with what the errors name skipped; at most four errors. The fourth would be a circle."""
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    changes: list[RowsChange] = []
    options = DecoderOptions(skip_events=frozenset(skip))
    d = decoder(changes, start, history=history, options=options)
    try:
        feed(d, bytes(log.packets))
    except NotUnderstood as error:
        named = str(error).split("at ", 1)[1].split(": ", 1)[0]
        assert named not in skip, f"skipping {named} did not help"
        assert len(skip) < 6
        skip.add(named)
        return read(log, skip, start)
    return changes, d.position()


@settings(max_examples=examples(300))
@given(
    kinds=st.lists(st.sampled_from(KINDS[:5]), min_size=3, max_size=5),
    place=st.integers(0, 60),
    damage=st.sampled_from(DAMAGE),
)
def test_what_is_skipped_leaves_every_other_group_whole_and_under_its_own_gtid(
    kinds: list[str], place: int, damage: str
) -> None:
    whole, rows = write(kinds)
    place %= len([one for one in whole.events if one[2] < len(kinds)])
    _, kind, hurt = whole.events[place]
    log, _ = write(kinds, place, damage)
    skip: set[str] = set()
    changes, position = read(log, skip)
    close_all()
    found: dict[str, list[int]] = {}
    for change in changes:
        found.setdefault(change.gtid, []).extend(row[0] for row in change.rows)
    for number, keys in rows.items():
        if number != hurt:
            assert found.pop(f"{SID}:{number + 1}", []) == keys
    given_out = found.pop(f"{SID}:{hurt + 1}", [])
    assert not found, "under a GTID of nobody, or of another group"
    assert [key for key in rows[hurt] if key in given_out] == given_out
    if kind == 33 and skip:
        assert given_out == [], "a group that is skipped at its beginning is skipped whole"
    missing = GtidSet(f"{SID}:1-{len(kinds) + 1}").minus(GtidSet(position.gtid_set))
    unreadable = kind == 33 and skip
    assert missing.count == (1 if unreadable else 0), "all are counted but what nobody can read"
    assert position.offset == log.at
    numbers = [change.pos for change in changes]
    assert numbers == sorted(set(numbers))
    # A restart before each change that came goes on with that change.
    for index, change in enumerate(changes):
        last = changes[index - 1].pos + len(changes[index - 1].rows) - 1 if index else 0
        start = Position("server", "b.000001", change.origin.transaction, "", change.origin.ordinal - 1, last_pos=last)
        again, _ = read(_from(log, change.origin.transaction), set(skip), start)
        part = changes[index:]
        assert [(one.gtid, one.rows) for one in again] == [(one.gtid, one.rows) for one in part]
    close_all()


def _from(log: Log, offset: int) -> Log:
    """The stream of a dump from an offset on: the beginning of the file, then what stands there."""
    made = Log()
    made.begin_file()
    at, data = 0, bytes(log.packets)
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        end_pos = int.from_bytes(data[at + 5 + 13 : at + 5 + 17], "little")
        length = int.from_bytes(data[at + 5 + 9 : at + 5 + 13], "little")
        if end_pos and end_pos - length >= offset:
            made.packets += data[at : at + 4 + size]
        at += 4 + size
    made.at = log.at
    return made


def test_the_gtid_of_a_group_is_counted_when_only_its_place_is_wrong() -> None:
    """The end of the group before is missing: what begins can be read, and is skipped whole at the operator's word."""
    log = Log()
    log.begin_file()
    log.gtid(1, BASE)
    log.query("BEGIN")
    log.table()
    log.insert((1, "x"))
    second = log.at
    log.transaction(2, BASE + 1, [(2, "x")])
    log.transaction(3, BASE + 2, [(3, "x")])
    with pytest.raises(NotUnderstood, match=f"at b.000001:{second}: a transaction begins before"):
        feed(decoder([]), bytes(log.packets))
    changes, position = read(log, {f"b.000001:{second}"})
    assert [(one.gtid, one.rows[0][0]) for one in changes] == [(f"{SID}:1", 1), (f"{SID}:3", 3)]
    assert position.gtid_set == f"{SID}:1-3"


def test_rows_of_an_xa_transaction_that_are_gone_are_given_up_at_the_place_that_the_error_names() -> None:
    """What the error names was no remedy: the next transaction stopped again, and the position never moved."""
    log = Log()
    log.begin_file()
    log.transaction(6, BASE, [(6, "x")])
    log.transaction(7, BASE + 1, [(7, "x")])
    log.gtid(8, BASE + 2)
    commit = log.at
    log.query("XA COMMIT X'61',X'',1")
    log.transaction(9, BASE + 3, [(9, "x")])
    gone = OpenXa("1:61:", "b.000000", 77, f"{SID}:5")
    start = Position("server", "b.000001", 4, f"{SID}:1-5", 0, (gone,), last_pos=1)
    d = decoder([], start)
    with pytest.raises(NotUnderstood, match="are not in the binlog any more") as caught:
        feed(d, bytes(log.packets))
    assert "skip_event = ['b.000000:77']" in caught.value.remedy
    skip = {"b.000000:77"}
    changes, position = read(log, skip, start)
    assert skip == {"b.000000:77", f"b.000001:{commit}"}, "its COMMIT, whose rows nobody has, is named too"
    assert [one.rows[0][0] for one in changes] == [6, 7, 9]
    assert (position.gtid_set, position.open_xa) == (f"{SID}:1-9", ())


def test_a_group_whose_end_was_skipped_ends_with_its_file() -> None:
    """It waited for the next one, and its position had the new file and the old offset: a restart lost rows there."""
    log = Log()
    log.begin_file()
    log.group, log.broken, log.damage = 0, 0, "checksum"
    first = log.at
    log.gtid(1, BASE)
    log.query("CREATE TABLE other (id INT)")
    log.event(4, struct.pack("<Q", 4) + b"b.000002")
    log.at = 4
    log.event(4, struct.pack("<Q", 4) + b"b.000002", when=0, artificial=True)
    log.event(15, struct.pack("<H50sIB", 4, b"9.7", 0, 19) + bytes(40) + b"\x01")
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    changes: list[RowsChange] = []
    d = decoder(changes, history=history, options=DecoderOptions(skip_events=frozenset({f"b.000001:{first}"})))
    feed(d, bytes(log.packets))
    assert (d.position().file, d.position().offset, d.position().events_done) == ("b.000002", log.at, 0)
    log.packets, log.group = bytearray(), 1
    log.transaction(2, BASE + 1, [(3, "x")], [(4, "x")])
    feed(d, bytes(log.packets))
    assert [(one.gtid, one.rows[0][0]) for one in changes] == [(f"{SID}:2", 3), (f"{SID}:2", 4)]


def test_a_resume_within_a_transaction_holds_when_an_xa_transaction_is_given_up_there() -> None:
    log = Log()
    log.begin_file()
    begin = log.at
    log.transaction(6, BASE, [(6, "x")], [(7, "x")])
    log.transaction(7, BASE + 1, [(8, "x")])
    whole, _ = read(log, set())
    gone = OpenXa("1:61:", "b.000000", 77)
    start = Position("server", "b.000001", begin, f"{SID}:1-5", 1, (gone,), last_pos=whole[0].pos)
    changes, position = read(log, {"b.000000:77"}, start)
    assert [(one.rows, one.pos) for one in changes] == [(one.rows, one.pos) for one in whole[1:]]
    assert (position.gtid_set, position.open_xa) == (f"{SID}:1-7", ())


@pytest.mark.parametrize("where", ["statement", "group"])
def test_what_a_skipped_statement_may_have_changed_is_doubted_after_a_restart_too(where: str) -> None:
    """`group`: of one that is passed over from its GTID on, a later statement is still followed."""
    log = Binlog().begin_file()
    log.gtid(1, BASE)
    log.query("CREATE TABLE t (id int)")
    if where == "group":
        skipped = log.at
        log.event(33, bytes(3))
        log.query("ALTER TABLE t ADD x int")
    else:
        log.gtid(2, BASE + 10)
        skipped = log.at
        log.event(2, bytes(3))
    log.gtid(3, BASE + 20)
    log.query("BEGIN")
    log.event(16, bytes(8))

    def history() -> SchemaHistory:
        return SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)

    here, again = history(), history()
    d = decoder([], history=here, options=DecoderOptions(skip_events=frozenset({f"b.000001:{skipped}"})))
    feed(d, bytes(log.packets))
    position = d.position()
    again.restore(here.take_entries(position.last_pos), position.last_pos)
    assert again.table("shop", "t") == here.table("shop", "t")
    known = here.table("shop", "t")
    names = [column.name for column in known.columns] if known is not None else None
    assert names == (["id", "x"] if where == "group" else None)
