"""The table of event types: every reader knows what to do with each, and a new kind is one row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from headrace.errors import NotUnderstood
from headrace.model import RowsChange
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.event_types import Does, EventType
from headrace.mysql.position.scan import BinlogScan
from tests.made_binlog import Binlog, close_all, decoder, feed

NEW = 77


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def test_each_event_number_is_in_the_table_once() -> None:
    assert len(ev.BY_NUMBER) == len(ev.TABLE)


def test_rows_events_name_the_plain_event_that_is_written_the_same_way() -> None:
    for one in ev.TABLE:
        assert (one.rows is not None) == (one.stream is Does.ROWS)
        if one.rows is not None:
            plain = ev.BY_NUMBER[one.rows.number].rows
            assert plain is not None
            assert dataclasses.replace(one.rows, compressed=False) == plain


def test_a_reader_without_a_handler_that_the_table_asks_of_it_is_not_made() -> None:
    with pytest.raises(KeyError):
        ev.handlers(lambda event: event.stream, {Does.PASS: lambda data, at, stop: None})


def stream(kind: int) -> bytes:
    log = Binlog().begin_file()
    log.transaction(1, 1_700_000_000_000_000, [(1, "a")])
    log.event(kind, b"a body")
    log.transaction(2, 1_700_000_000_000_000, [(2, "b")])
    return bytes(log.packets)


@pytest.mark.parametrize("does", [Does.PASS, Does.REFUSE])
def test_a_new_kind_of_event_is_one_row(does: Does, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotUnderstood, match=r"event type 77 \(unknown\)"):
        feed(decoder([]), stream(NEW))
    row = EventType(NEW, "NEWS", does, Does.OUTSIDE, remedy="read about it")
    monkeypatch.setattr(ev, "TABLE", (*ev.TABLE, row))
    monkeypatch.setitem(ev.BY_NUMBER, NEW, row)
    changes = list[RowsChange]()
    if does is Does.REFUSE:
        with pytest.raises(NotUnderstood, match=r"event type 77 \(NEWS\)") as reported:
            feed(decoder(changes), stream(NEW))
        assert reported.value.remedy == "read about it"
    else:
        feed(decoder(changes), stream(NEW))
        assert len(changes) == 2


def test_a_scan_and_the_decoder_may_do_different_things_with_the_same_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def boundaries() -> list[int]:
        class Noted(BinlogScan):
            def on_boundary(self, start: int) -> None:
                found.append(start)

        found, scan = list[int](), Noted("b.000001")
        scan.cursor.checksums = True
        data, at, more = stream(NEW), 0, True
        while more:
            at, more = scan.feed(data, at, lambda: False)
        return found

    before = boundaries()
    monkeypatch.setattr(ev, "TABLE", (*ev.TABLE, EventType(NEW, "NEWS", Does.REFUSE, Does.OUTSIDE)))
    assert len(boundaries()) == len(before) + 1
