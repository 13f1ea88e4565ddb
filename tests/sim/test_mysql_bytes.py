"""The model's binlog against one that a real MySQL 9.7 has written for the same statements."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from sim.mysql import events
from sim.mysql.gtids import Gtids, uuid_text
from tests.sim.reading import model

RECORDED = Path(__file__).parents[1] / "fixtures" / "samples" / "mysql-bin.000001"


def split(data: bytes) -> list[bytes]:
    """The events of a binlog file."""
    found, at = [], 4
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        found.append(data[at : at + size])
        at += size
    return found


def plain(event: bytes) -> tuple[Any, ...]:
    """An event without what differs between two servers: times, threads, numbers of tables and of transactions, and how
    far transactions depend on each other, which the model does not know."""
    kind, body = event[4], bytearray(event[19:-4])
    if kind == events.FORMAT:
        body[52:56] = bytes(4)
    elif kind == events.QUERY:
        body[:8] = bytes(8)
        text = 13 + int.from_bytes(body[11:13], "little")
        number = body.find(b"\x11", 39, text)  # of the DDL's transaction
        if number >= 0 and body[number + 9 : number + 10] == b"\x12":
            body[number + 1 : number + 9] = bytes(8)
    elif kind == events.GTID:
        del body[42:49], body[26:34]
    elif kind in (events.TABLE_MAP, events.WRITE_ROWS, events.UPDATE_ROWS, events.DELETE_ROWS):
        body[:6] = b""
    elif kind == events.XID:
        body[:] = b""
    server_id, size, end, flags = struct.unpack_from("<IIIH", event, 5)
    return kind, server_id, size, end, flags, bytes(body)


def test_the_recorded_binlog_of_a_real_server_is_made_again() -> None:
    recorded = split(RECORDED.read_bytes())
    uuid, _ = events.gtid_of(next(one for one in recorded if one[4] == events.GTID))
    server_id = struct.unpack_from("<I", recorded[0], 5)[0]
    facts = {"uuid": uuid, "version": "9.7.4-2", "prefix": "mysql-bin", "server_id": server_id}
    server = model(**facts, binlog_row_metadata="FULL")
    client = server.session()
    client.execute("CREATE DATABASE shop")
    server.reset()
    for statement in (
        "USE shop",
        "CREATE TABLE serve_sync (id BIGINT PRIMARY KEY, name VARCHAR(50), price DECIMAL(10,2), on_sale TINYINT,"
        " updated DATETIME)",
        "INSERT INTO serve_sync VALUES (1, '家庭保洁 4 小时', 199.00, 1, '2026-11-21 09:30:00'),"
        " (2, '擦玻璃', 88.5, 0, NULL)",
        "UPDATE serve_sync SET price = 179 WHERE id = 1",
        "DELETE FROM serve_sync WHERE id = 2",
        "ALTER TABLE serve_sync ADD COLUMN city VARCHAR(20)",
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, user_id BIGINT, total DECIMAL(10,2))",
        "INSERT INTO orders VALUES (7, 42, 10), (8, 43, 20), (9, 42, 30)",
        "UPDATE orders SET user_id = 43 WHERE id = 9",
        "FLUSH BINARY LOGS",
    ):
        client.execute(statement)
    made = split(server.engine.binlog.files[0].as_bytes())
    for ours, theirs in zip(made, recorded, strict=False):
        assert plain(ours) == plain(theirs)
    assert len(made) == len(recorded)


def test_gtid_sets_are_printed_and_packed_as_the_server_does() -> None:
    one, two = uuid_text("1" * 32), uuid_text("2" * 32)
    known = Gtids(f"{two}:5, {one.upper()}:1-3:7:4")
    assert str(known) == f"{one}:1-4:7,\n{two}:5"
    assert Gtids.decode(known.encode()) == known
    assert str(known.minus(Gtids(f"{one}:2-8"))) == f"{one}:1,\n{two}:5"
    assert known.next_number(one) == 5
    assert known.next_number(two) == 1
    assert Gtids(f"{one}:2-4").within(known)
    assert not known.within(Gtids(f"{one}:1-9"))
