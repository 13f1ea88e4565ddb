"""Texts with codes that have no Unicode character: how they are told apart, cut into pieces and counted."""

from __future__ import annotations

from unittest import mock

import orjson
import pytest

from headrace.model import Column, Operation, RowsChange, TableSchema
from headrace.mysql.undecodable import ReplacedText, Undecodable, UndecodableTexts, noted
from headrace.mysql.values import large
from headrace.mysql.values.charsets import WIDTHS, codec_of, replaced
from headrace.snapshot.touched import Touched

SCHEMA = TableSchema("shop", "t", (Column("k", "varchar(9)", 12, charset="gbk"), Column("v", "text", 12)), (0,))
BAD = {
    "big5": "a3c0",
    "cp1250": "81",
    "eucjpms": "a9a1",
    "euckr": "a2e8",
    "gb18030": "",
    "gb2312": "a2a1",
    "gbk": "a140",
    "sjis": "8540",
    "ucs2": "d800",
    "ujis": "a9a1",
    "utf16": "d800",
    "utf16le": "00d8",
    "utf32": "0000d800",
    "utf8mb4": "eda080",
}
"""A code of each kind of character set that has no Unicode character."""


def test_keys_that_look_alike_stay_apart_while_a_table_is_read() -> None:
    """A row that the stream has changed is left out of a snapshot, another one whose key prints the same is not."""
    texts, touched = UndecodableTexts(), Touched()
    text = texts.text("gbk", texts.note(SCHEMA, 0))
    window = touched.open(SCHEMA)
    touched.note(RowsChange(SCHEMA, Operation.UPDATE, [(text(b"\xa1\x40"), "new")], None, 1, 0, ""))
    read = [(text(b"\xa1\x40"), "old"), (text(b"\xa1\x41"), "old"), ("?", "old")]
    assert touched.left(SCHEMA, read, window) == read[1:]
    assert [row[0] for row in orjson.loads(orjson.dumps(read))] == ["?", "?", "?"]
    assert texts.counts == {("shop", "t", "k"): 3}


def test_texts_are_equal_only_where_their_bytes_are() -> None:
    first, second = ReplacedText.of("?", b"\xa1\x40"), ReplacedText.of("?", b"\xa1\x41")
    assert str(first) == str(second) == "?"
    assert first == ReplacedText.of("?", b"\xa1\x40")
    assert first != second
    assert first != "?"
    assert repr(first) != repr(second), "by which rows of tables without a key are told apart"


@pytest.mark.parametrize("charset", [name for name, code in BAD.items() if code])
def test_large_texts_come_as_small_ones_wherever_they_are_cut(charset: str) -> None:
    encoded = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
    good, code = "abc".encode(encoded.get(charset, "ascii")), bytes.fromhex(BAD[charset])
    raw = (good + code) * 9 + code * 3 + good
    expected, well_formed = replaced(raw, charset)
    assert well_formed
    assert expected.count("?") == 12
    assert expected.replace("?", "") == "abc" * 10
    for piece in range(1, 9):
        notes: list[bool] = []
        with mock.patch.multiple(large, LARGE_VALUE=0, PIECE=piece):
            value = noted(large.large_text(charset), notes.append)(raw, 0, len(raw), 0)
            assert value is not None
            assert (value.whole(), value.whole()) == (expected, expected)
            assert notes == [True], "one text, however often it is printed"
            with pytest.raises(ValueError, match=r"no character in|can't decode|no such code"):
                large.large_text(charset)(raw, 0, len(raw), 0).whole()  # type: ignore[union-attr]


@pytest.mark.parametrize("charset", sorted(set(WIDTHS) - {"binary"}))
def test_text_that_has_its_characters_is_replaced_by_itself(charset: str) -> None:
    raw = b"".join(code for n in range(0x20, 0x7F) if (code := _coded(charset, n)))
    assert replaced(raw, charset) == (codec_of(charset).decode(raw), True)


def _coded(charset: str, number: int) -> bytes:
    width = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}.get(charset, 1)
    return number.to_bytes(width, "little" if charset == "utf16le" else "big")


@pytest.mark.parametrize(("charset", "raw"), [("utf8mb4", b"a\xff"), ("gbk", b"\xa1"), ("utf8mb4", b"\xe0\x80\x80")])
def test_bytes_that_are_no_code_are_no_text_whatever_the_operator_says(charset: str, raw: bytes) -> None:
    texts = UndecodableTexts()
    with pytest.raises(Undecodable, match="bytes that are no character of its character set"):
        texts.text(charset, texts.note(SCHEMA, 0))(raw)


def test_what_is_not_published_counts_nowhere_but_a_key_always_is() -> None:
    texts = UndecodableTexts(stop=True, published=lambda *_: False)
    assert str(texts.text("gbk", texts.note(SCHEMA, 1))(b"\xa1\x40")) == "?"
    assert texts.counts == {}
    with pytest.raises(Undecodable, match="column `k`"):
        texts.text("gbk", texts.note(SCHEMA, 0))(b"\xa1\x40")
