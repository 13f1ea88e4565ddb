"""A resume within a transaction passes over what was confirmed without looking into it."""

from collections.abc import Iterator

import pytest

from headrace.errors import NotUnderstood
from headrace.model import Position, RowsChange
from tests.made_binlog import Binlog, close_all, decoder, feed

DONE = 1000


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def one_transaction(broken: int) -> tuple[Binlog, int, int]:
    """DONE + 1 rows events in one transaction, of which the one with number `broken` can't be decoded; the stream, the
    transaction's offset, and where its packets begin."""
    log = Binlog().begin_file()
    begin, packet = log.at, len(log.packets)
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    for number in range(1, DONE + 2):
        log.table()
        if number == broken:
            log.event(30, b"\x07\0\0\0\0\0\x01\0\x02\0\x02\xff" + b"\xfc\x01\0\0\0\xf0short")
        else:
            log.insert((number, "a"))
    log.event(16, bytes(8))
    return log, begin, packet


@pytest.mark.parametrize("broken", [1, DONE // 2, DONE])
def test_rows_that_would_stop_the_decoder_do_not_when_they_were_confirmed_before(broken: int) -> None:
    log, begin, packet = one_transaction(broken)
    changes: list[RowsChange] = []
    with pytest.raises(NotUnderstood):
        feed(decoder(changes), bytes(log.packets))
    changes.clear()
    d = decoder(changes, Position("server", "b.000001", begin, events_done=DONE, last_pos=1 << 62))
    feed(d, bytes(log.packets[packet:]))
    assert [change.rows for change in changes] == [[(DONE + 1, "a")]]
    assert d.splitter.events > 2 * DONE  # they were read and counted, and nothing else


def test_an_undecodable_row_after_the_skipped_events_stops_the_stream() -> None:
    log, begin, packet = one_transaction(DONE + 1)
    changes: list[RowsChange] = []
    d = decoder(changes, Position("server", "b.000001", begin, events_done=DONE))
    with pytest.raises(NotUnderstood):
        feed(d, bytes(log.packets[packet:]))
    assert changes == []
