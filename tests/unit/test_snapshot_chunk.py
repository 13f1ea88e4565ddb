"""Rows of a table as a server sent them: what tells where each of them is."""

from __future__ import annotations

from headrace.model import Column, TableSchema
from headrace.mysql.snapshot.chunk import ChunkDecoder, MysqlChunk, ReadFacts
from headrace.mysql.snapshot.select import TableSelect, key_alone
from headrace.mysql.undecodable import UndecodableTexts
from headrace.mysql.values.column_types import ValueOptions
from headrace.mysql.wire.query_stream import RowBlock, RowBytes
from headrace.ports.tables import Watermark
from tests.unit.test_query_stream import packets, row

COLUMNS = (Column("name", "varchar(300)", 12, charset="utf8mb4"), Column("id", "int", 4))


def chunk(
    *parts: list[tuple[str | bytes, int]],
    keys: tuple[int, ...] = (1,),
    columns: tuple[Column, ...] = COLUMNS,
    skips: bool = False,
) -> MysqlChunk:
    """`skips`: texts without Unicode characters are left out with their rows."""
    raw = [[(name.encode() if isinstance(name, str) else name, b"%d" % id_) for name, id_ in part] for part in parts]
    made = [[row(*values) for values in part] for part in raw]
    block = RowBlock(
        [RowBytes(packets(*rows), len(rows), 0, len(packets(*rows[:-1]))) for rows in made], sum(map(len, made))
    )
    select = TableSelect(TableSchema("shop", "t", columns, keys), frozenset(), "")
    decoder = ChunkDecoder(select, ValueOptions(), UndecodableTexts(stop=skips), skips=skips)
    return MysqlChunk(block, decoder, ReadFacts(True, Watermark(), False, 0.0, None, ""))


def test_the_key_of_each_row_that_was_taken_is_known() -> None:
    parts = [("a", 1), ("b" * 300, 2), ("", 3)], [("c", 4)], [("d", 5), ("e", 6)]
    for count in range(1, 7):
        made = chunk(*parts)
        while rows := made.take(count):
            assert [made.key_at(i) for i in range(len(rows))] == [key_alone([b"%d" % id_]) for _, id_ in rows]
            assert made.key_at(len(rows) - 1) == made.key


def test_a_table_without_a_key_has_none() -> None:
    made = chunk([("a", 1)], keys=())
    assert len(made.take(1)) == 1
    assert made.key_at(0) is None


def test_the_key_of_a_row_is_known_after_rows_that_are_left_out() -> None:
    columns = (Column("name", "varchar(300)", 12, charset="gbk"), COLUMNS[1])
    parts: tuple[list[tuple[str | bytes, int]], ...] = (
        [("a", 1), (b"\xa1\x40", 2), ("c", 3)],
        [(b"\xa1\x40", 4), ("e", 5)],
    )
    for count in range(1, 6):
        made, seen = chunk(*parts, columns=columns, skips=True), []
        while made.rows:
            rows = made.take(count)
            assert [made.key_at(i) for i in range(len(rows))] == [key_alone([b"%d" % id_]) for _, id_ in rows]
            seen += rows
        assert seen == [("a", 1), ("c", 3), ("e", 5)]
        assert made.key == key_alone([b"5"])
