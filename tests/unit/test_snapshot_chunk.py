"""Rows of a table as a server sent them: what tells where each of them is."""

from __future__ import annotations

from headrace.model import Column, TableSchema
from headrace.mysql.snapshot.chunk import MysqlChunk, ReadFacts
from headrace.mysql.snapshot.select import TableSelect, key_alone
from headrace.mysql.values.column_types import ValueOptions
from headrace.mysql.values.textcode import make_text_decoder
from headrace.mysql.wire.query_stream import RowBlock, RowBytes
from headrace.ports.tables import Watermark
from tests.unit.test_query_stream import packets, row

COLUMNS = (Column("name", "varchar(300)", 12, charset="utf8mb4"), Column("id", "int", 4))


def chunk(*parts: list[tuple[str, int]], keys: tuple[int, ...] = (1,)) -> MysqlChunk:
    made = [[row(name.encode(), b"%d" % id_) for name, id_ in part] for part in parts]
    block = RowBlock(
        [RowBytes(packets(*rows), len(rows), 0, len(packets(*rows[:-1]))) for rows in made], sum(map(len, made))
    )
    decode = make_text_decoder(COLUMNS, (0, 1), ValueOptions())
    facts = ReadFacts(True, Watermark(), False, 0.0, None, "")
    return MysqlChunk(block, TableSelect(TableSchema("shop", "t", COLUMNS, keys), frozenset(), ""), decode, facts)


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
