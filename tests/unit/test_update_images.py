"""An UPDATE's second image takes over what has the same bytes as the first: the rows are those of each image alone."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model import ABSENT, Row
from headrace.mysql.values.codewriter import DataOverrun
from headrace.mysql.values.column_types import Field
from headrace.mysql.values.rowcode import RowDecoder, make_decoder, make_single
from headrace.mysql.values.values import datetime2, enum_label
from headrace_common.numbers import float32
from tests.examples import examples

FIELDS = (
    Field("fixed", "q", 8),
    Field("var", "H", 2, codec="utf-8"),
    Field("fixed", "7s", 7, datetime2(3)),
    Field("fixed", "B", 1, enum_label(("a", "b"))),
    Field("var", "3s", 3),
    Field("var", "B", 1, bytes.hex),
    Field("var", "B", 1, codec="latin-1"),
    Field("fixed", "d", 8),
    Field("fixed", "b", 1),
    Field("fixed", "f", 4, float32),
)
WHOLE = (1 << len(FIELDS)) - 1
CHOICES = (
    [struct.pack("<q", 1), struct.pack("<q", -2)],
    [struct.pack("<H", 0), struct.pack("<H", 6) + "家庭".encode()],
    [bytes.fromhex("8000000000" + "0000"), bytes.fromhex("99b00a1000" + "03e8")],
    [b"\0", b"\1", b"\2"],
    [b"\0\0\0", b"\2\0\0ab"],
    [b"\0", b"\3abc"],
    [b"\1\xe9", b"\1e"],
    [struct.pack("<d", 0.0), struct.pack("<d", -0.0), struct.pack("<d", float("inf"))],
    [b"\0", b"\xff"],
    [struct.pack("<f", 0.0), struct.pack("<f", -0.0), struct.pack("<f", 1.1)],
)
CELLS = st.tuples(*(st.sampled_from([None, *choices]) for choices in CHOICES))


def image(cells: tuple[bytes | None, ...], columns: int) -> bytes:
    chosen = [cell for i, cell in enumerate(cells) if columns >> i & 1]
    nulls = sum((cell is None) << bit for bit, cell in enumerate(chosen))
    return nulls.to_bytes((len(chosen) + 7) // 8, "little") + b"".join(cell or b"" for cell in chosen)


def alone(raw: bytes, columns: int, before: Row | None = None) -> Row:
    row, end = make_single(FIELDS, columns)(raw, 0, len(raw))
    assert end == len(raw)
    if before is None:
        return row
    return tuple(old if new is ABSENT else new for old, new in zip(before, row, strict=True))


PAIR: RowDecoder = make_decoder(FIELDS, WHOLE, WHOLE)


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=4))
def test_both_images_are_what_each_is_alone(pairs: list[tuple[tuple[bytes | None, ...], ...]]) -> None:
    images = [image(cells, WHOLE) for pair in pairs for cells in pair]
    data = b"".join(images)
    # repr, because 0.0 and -0.0 are equal
    assert repr(PAIR(data, 0, len(data))) == repr([alone(one, WHOLE) for one in images])


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, WHOLE), st.integers(1, WHOLE), CELLS, CELLS)
def test_images_that_lack_columns_are_what_each_is_alone(
    first: int, second: int, before: tuple[bytes | None, ...], after: tuple[bytes | None, ...]
) -> None:
    old, new = image(before, first), image(after, second)
    data = old + new
    row = alone(old, first)
    assert repr(make_decoder(FIELDS, first, second)(data, 0, len(data))) == repr([row, alone(new, second, row)])


def test_what_did_not_change_is_made_once() -> None:
    made: list[bytes] = []

    def post(raw: bytes) -> str:
        made.append(raw)
        return raw.decode()

    decode = make_decoder((Field("var", "B", 1, post),), 1, 1)
    (a, b), (c,), (d,) = decode(b"\0\1x\0\1x", 0, 6), *decode(b"\0\1x\0\1y", 0, 6)
    assert a[0] is b[0]
    assert (c, d) == ("x", "y")
    assert made == [b"x", b"x", b"y"]


def test_an_image_that_is_missing_is_left_to_who_pairs_them() -> None:
    raw = image(tuple(choices[0] for choices in CHOICES), WHOLE)
    assert len(PAIR(raw * 3, 0, 3 * len(raw))) == 3
    with pytest.raises(DataOverrun):
        PAIR(raw * 3, 0, 3 * len(raw) - 1)
