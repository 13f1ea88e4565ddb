"""A start in the middle of a transaction is refused where only the stream can tell, and a right one never is."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from headrace.errors import LostKind, PositionLost
from headrace.model import Position, RowsChange
from tests.made_binlog import Binlog, close_all, decoder, feed


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


class Places:
    """Three transactions; `starts` and `ends` of each. Between the first two may stand checkpoints of MariaDB's."""

    def __init__(self, *, stop: bool, rotate: bool, checkpoint: bool = False) -> None:
        log = self.log = Binlog().begin_file()
        self.starts, self.ends = list[int](), list[int]()
        for number in (1, 2, 3):
            self.starts.append(log.at)
            log.transaction(number, 1_700_000_000_000_000 + number, [(number, "a")])
            self.ends.append(log.at)
            if checkpoint and number == 1:
                log.event(161, struct.pack("<I", 8) + b"b.000001")
                log.event(161, struct.pack("<I", 8) + b"b.000001")
        if stop:
            log.event(3, b"")
        if rotate:
            log.event(4, struct.pack("<Q", 4) + b"b.000002")
        log.at = 4
        log.begin_file("b.000002")
        self.starts.append(log.at)
        log.transaction(4, 1_700_000_000_000_004, [(4, "a")])

    def rows(self, offset: int, **stored: str) -> list[int]:
        """What is published from a start at this offset of the first file, which is read from its beginning."""
        changes = list[RowsChange]()
        start = Position("server", "b.000001", offset, **stored)
        feed(decoder(changes, start, skip_before=offset), bytes(self.log.packets))
        return [row[0] for change in changes for row in change.rows]


ENDINGS = pytest.mark.parametrize(("stop", "rotate"), [(False, True), (True, False), (True, True), (False, False)])


@ENDINGS
def test_a_position_between_transactions_is_a_good_start(stop: bool, rotate: bool) -> None:
    places = Places(stop=stop, rotate=rotate)
    for number in range(3):
        assert places.rows(places.starts[number]) == [1, 2, 3, 4][number:]
        assert places.rows(places.ends[number]) == [2, 3, 4][number:]


@ENDINGS
def test_a_position_within_a_transaction_is_refused(stop: bool, rotate: bool) -> None:
    places = Places(stop=stop, rotate=rotate)
    for start, end in zip(places.starts, places.ends, strict=False):
        for offset in (start + 1, (start + end) // 2, end - 1):
            with pytest.raises(
                PositionLost, match=rf"b.000001:{offset} lies in the middle of the transaction at"
            ) as reported:
                places.rows(offset)
            assert reported.value.kind is LostKind.TRUNCATED
            assert f"b.000001:{start};" in str(reported.value)


def test_a_position_after_the_stop_event_is_a_valid_start() -> None:
    places = Places(stop=True, rotate=False)
    assert places.rows(places.ends[2] + 23) == [4]


def test_checkpoints_between_two_transactions_belong_to_neither() -> None:
    places = Places(stop=False, rotate=True, checkpoint=True)
    assert places.starts[1] > places.ends[0]
    assert places.rows(places.ends[0]) == [2, 3, 4]
    assert places.rows(places.starts[1]) == [2, 3, 4]
    with pytest.raises(PositionLost):
        places.rows(places.ends[0] - 1)


def test_a_stored_last_transaction_does_not_make_a_good_start_a_bad_one() -> None:
    places = Places(stop=False, rotate=True)
    for number in (1, 2):
        last = f"b.000001:{places.starts[number - 1]}"
        assert places.rows(places.starts[number], last_transaction=last) == [1, 2, 3, 4][number:]
