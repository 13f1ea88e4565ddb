"""A daemon that serves Canal's clients, and clients that read, acknowledge, roll back, go away and behave badly."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.ports import free_port
from headrace.canal_wire import canal_pb2 as pb
from headrace.native import find
from tests.canal_client import Batch, CanalClient, Refused
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = pytest.mark.server

Connect = Callable[..., CanalClient]
Serve = Callable[..., DaemonProcess]


@pytest.fixture
def port() -> int:
    return free_port()


def sink(port: int, more: str = "") -> str:
    return f'type = "canal"\nlisten = "127.0.0.1:{port}"\n{more}'


@pytest.fixture
def connect(port: int) -> Iterator[Connect]:
    made: list[CanalClient] = []

    def connect(destination: str = "shop", **more: Any) -> CanalClient:
        made.append(CanalClient("127.0.0.1", port, destination, **more))
        return made[-1]

    yield connect
    for client in made:
        client.close()


@pytest.fixture
def serve(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], port: int
) -> Serve:
    def serve(more: str = "", column: str = "name VARCHAR(20)") -> DaemonProcess:
        """A daemon that streams a table t of an id and a column; `more` is of its [sink]."""
        execute(f"CREATE TABLE t (id INT PRIMARY KEY, {column}) CHARSET utf8mb4")
        process = daemon(shop=destination_toml(mysql, schema, sink(port, more))).start()
        process.wait_state("shop", "STREAMING")
        return process

    return serve


@pytest.fixture
def served(serve: Serve) -> DaemonProcess:
    return serve()


def following(client: CanalClient, size: int) -> Batch:
    """The next batch that has entries."""
    found = list[Batch]()

    def came() -> bool:
        found.append(client.get(size))
        return found[-1].id > 0

    eventually(came, 30)
    return found[-1]


def rows(client: CanalClient, count: int) -> list[tuple[str, dict[str, str | None]]]:
    """The next rows, acknowledged."""
    found: list[tuple[str, dict[str, str | None]]] = []
    while len(found) < count:
        batch = following(client, 100)
        found += batch.rows()
        client.ack(batch.id)
    return found


def test_a_client_gets_every_change_in_order_with_all_that_canal_says_of_it(
    served: DaemonProcess, connect: Connect, execute: Callable[..., Any], schema: str
) -> None:
    client = connect()
    client.subscribe(".*\\..*")
    execute(
        "INSERT INTO t VALUES (1, '保洁'), (2, NULL)",
        "UPDATE t SET name = 'x' WHERE id = 2",
        "DELETE FROM t WHERE id = 1",
        "ALTER TABLE t ADD COLUMN n INT",
    )
    entries: list[pb.Entry] = []
    while len(entries) < 4:
        batch = following(client, 100)
        entries += batch.entries
        client.ack(batch.id)
    inserted, updated, deleted, altered = entries
    header = inserted.header
    assert (header.schema_name, header.table_name) == (schema, "t")
    assert (header.event_type, header.source_type, header.version) == (pb.INSERT, 2, 1)
    assert header.logfile_name.startswith("mysql-bin.")
    assert header.execute_time % 1000 == 0
    assert {pair.key for pair in header.props} == {"_pos", "rowsCount", "curtGtid"}
    change = pb.RowChange.FromString(inserted.store_value)
    assert not change.is_ddl
    first, second = change.row_datas
    id_, name = first.after_columns
    assert (id_.index, id_.name, id_.value, id_.is_key, id_.sql_type, id_.mysql_type) == (0, "id", "1", True, 4, "int")
    assert (name.index, name.value, name.updated, name.is_null) == (1, "保洁", True, False)
    assert second.after_columns[1].is_null
    change = pb.RowChange.FromString(updated.store_value)
    assert change.row_datas[0].before_columns[1].is_null
    assert [column.updated for column in change.row_datas[0].after_columns] == [False, True]
    change = pb.RowChange.FromString(deleted.store_value)
    assert [column.value for column in change.row_datas[0].before_columns] == ["1", "保洁"]
    assert not change.row_datas[0].after_columns
    change = pb.RowChange.FromString(altered.store_value)
    assert (change.is_ddl, change.event_type, change.sql) == (True, pb.ALTER, "ALTER TABLE t ADD COLUMN n INT")


@pytest.mark.parametrize("native", ["auto", "off"])
def test_transactions_begin_and_end_where_that_is_asked_for(
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    connect: Connect,
    port: int,
    native: str,
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    text = destination_toml(mysql, schema, sink(port)).replace("[filter]", "[filter]\ntransactions = true")
    process = daemon(shop=text, settings=f'native = "{native}"').start()
    process.wait_state("shop", "STREAMING")
    client = connect()
    client.subscribe(".*\\..*")
    execute(*(f"INSERT INTO t VALUES ({number})" for number in range(10)))
    entries: list[pb.Entry] = []
    while len(entries) < 30:
        batch = following(client, 7)
        entries += batch.entries
        client.ack(batch.id)
    kinds = [entry.entry_type for entry in entries]
    assert kinds == [pb.TRANSACTIONBEGIN, pb.ROWDATA, pb.TRANSACTIONEND] * 10
    for begin, row, end in zip(entries[::3], entries[1::3], entries[2::3], strict=True):
        assert begin.header.logfile_offset < row.header.logfile_offset < end.header.logfile_offset
        assert pb.TransactionBegin.FromString(begin.store_value).thread_id > 0
        assert int(pb.TransactionEnd.FromString(end.store_value).transaction_id) > 0
        assert {entry.header.props[-1].value for entry in (begin, row, end)} == {row.header.gtid}
    found = process.health()[1]["destinations"]["shop"]["native"]
    if native == "off" or find().module is None:
        assert found["reason"]
    else:
        assert found == {"reason": None, "python_tables": {}}


def test_what_is_not_acknowledged_comes_again_after_a_rollback_a_disconnect_and_a_kill(
    served: DaemonProcess, connect: Connect, execute: Callable[..., Any]
) -> None:
    client = connect()
    client.subscribe()
    for i in range(6):
        execute(f"INSERT INTO t VALUES ({i}, 'x')")
    first, second, third = (following(client, 1) for _ in range(3))
    assert [batch.rows()[0][1]["id"] for batch in (first, second, third)] == ["0", "1", "2"]
    client.ack(first.id)
    client.roll_back(third.id)
    assert following(client, 1).rows()[0][1]["id"] == "2"
    client.roll_back()
    assert following(client, 1).rows()[0][1]["id"] == "1"
    client.close()
    client = connect()
    client.roll_back()  # as the Java client does before it subscribes
    client.subscribe()
    batch = following(client, 2)
    assert [row["id"] for _, row in batch.rows()] == ["1", "2"]
    client.ack(batch.id)
    served.kill()
    served.start()
    served.wait_state("shop", "STREAMING")
    client = connect()
    client.subscribe()
    again = list[int]()
    while again[-1:] != [5]:
        again += [int(row["id"] or -1) for _, row in rows(client, 1)]
    assert again == list(range(again[0], 6)), "what was not acknowledged, and whose position was not stored"
    assert again[0] <= 3


def test_batches_are_acknowledged_in_their_order_and_once(
    served: DaemonProcess, connect: Connect, execute: Callable[..., Any]
) -> None:
    client = connect()
    client.subscribe()
    execute("INSERT INTO t VALUES (1, 'x')", "INSERT INTO t VALUES (2, 'x')")
    first, second = following(client, 1), following(client, 1)
    client.ack(second.id)
    assert "comes before its turn" in client.error()
    client.ack(first.id)
    client.ack(first.id)
    assert "was acknowledged or rolled back" in client.error()
    client.ack(-1)
    client.ack(0)
    assert "needs the number of its batch" in client.error()
    client.ack(second.id)
    assert client.get(10).id == -1


def test_who_subscribes_last_is_served(served: DaemonProcess, connect: Connect, execute: Callable[..., Any]) -> None:
    one, two = connect(), connect()
    one.subscribe()
    execute("INSERT INTO t VALUES (1, 'x')")
    batch = following(one, 1)
    two.subscribe()
    assert [row["id"] for _, row in rows(two, 1)] == ["1"]
    one.ack(batch.id)
    assert "which subscribed later" in one.error()
    with pytest.raises(Refused, match="which subscribed later"):
        one.get()


def test_a_filter_leaves_tables_out_and_holds_up_nothing(
    served: DaemonProcess, connect: Connect, execute: Callable[..., Any], schema: str
) -> None:
    client = connect()
    client.subscribe(f"{schema}\\.u.*")
    execute("CREATE TABLE u1 (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1, 'x')", "INSERT INTO u1 VALUES (7)")
    assert rows(client, 1)[-1] == ("INSERT", {"id": "7"})
    execute("INSERT INTO t VALUES (2, 'x')")
    eventually(lambda: client.get(1).id == -1 and served.health()[1]["destinations"]["shop"]["lag_seconds"] == 0, 10)
    with pytest.raises(Refused, match="the filter is not understood"):
        client.subscribe("(")


def test_users_destinations_and_packets_that_are_wrong(
    serve: Serve, connect: Connect, execute: Callable[..., Any]
) -> None:
    process = serve('user = "reader"\npassword = "secret"')
    right = {"user": "reader", "password": "secret"}
    for wrong in ({"user": "reader", "password": "other"}, {"user": "nobody", "password": "secret"}, {}):
        with pytest.raises(Refused, match="auth failed"):
            connect(**wrong)
    assert "secret" not in process.log.read_text()
    good = connect(**right)
    good.subscribe()
    with pytest.raises(Refused, match="'elsewhere' is not served here"):
        connect("elsewhere", **right).subscribe()
    large = connect(**right)
    large.send_raw((1 << 30).to_bytes(4, "big"))
    assert "too large" in large.error()
    broken = connect(**right)
    broken.send_raw((3).to_bytes(4, "big") + b"\xff\xff\xff")
    assert "can't be read" in broken.error()
    strange = connect(**right)
    strange.send(pb.DUMP, b"")
    assert "are not supported" in strange.error()
    half = connect(**right)
    half.send_raw(b"\0\0")
    half.close()
    execute("INSERT INTO t VALUES (1, 'x')")
    assert rows(good, 1) == [("INSERT", {"id": "1", "name": "x"})]


def test_more_connections_than_are_served_get_an_answer(served: DaemonProcess, connect: Connect, port: int) -> None:
    client = connect()
    client.subscribe()
    held = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(300)]
    try:
        last = held[-1]
        size = int.from_bytes(last.recv(4), "big")
        assert b"clients are connected" in last.recv(size)
        assert client.get().id == -1
    finally:
        for one in held:
            one.close()


def test_a_client_that_never_acknowledges_costs_no_memory_and_is_named(
    serve: Serve, connect: Connect, execute: Callable[..., Any]
) -> None:
    process = serve('max_store = "100MiB"', "b LONGTEXT")
    for i in range(90):
        execute(f"INSERT INTO t VALUES ({i}, REPEAT('x', 2000000))")
    eventually(lambda: "no client is subscribed" in str(process.health()[1]), 30, lambda: str(process.health()))
    assert _memory(process.pid) < 300 << 20
    client = connect()
    client.subscribe()
    given = [batch.id for batch in (client.get(4, 1_000) for _ in range(12)) if batch.id != -1]
    assert given
    client.roll_back()
    ids = [row["id"] for _, row in rows(client, 90)]
    assert ids == [str(i) for i in range(90)]
    assert _memory(process.pid) < 500 << 20


def test_a_client_that_goes_while_it_waits_for_entries_is_noticed_at_once(
    served: DaemonProcess, connect: Connect, execute: Callable[..., Any]
) -> None:
    waiting = connect()
    waiting.subscribe()
    request = pb.Get(destination="shop", client_id="1001", fetch_size=100, timeout=60_000, unit=2)
    waiting.send(pb.GET, request.SerializeToString())
    sent = served.log.read_text().count("a Canal client has subscribed")
    assert sent == 1
    waiting.close()
    eventually(lambda: "a Canal client has gone" in served.log.read_text(), 10)
    execute("INSERT INTO t VALUES (1, 'x')")
    eventually(lambda: "no client is subscribed" in str(served.health()[1]), 10, lambda: str(served.health()))


def test_requests_that_come_while_a_client_waits_are_answered_in_their_turn(
    served: DaemonProcess, connect: Connect, execute: Callable[..., Any]
) -> None:
    client = connect()
    client.subscribe()
    request = pb.Get(destination="shop", client_id="1001", fetch_size=1, timeout=60_000, unit=2)
    for _ in range(3):
        client.send(pb.GET, request.SerializeToString())
    execute(*(f"INSERT INTO t VALUES ({i}, 'x')" for i in range(3)))
    batches = [client.answer() for _ in range(3)]
    assert [row["id"] for batch in batches for _, row in batch.rows()] == ["0", "1", "2"]


def _memory(pid: int) -> int:
    """Bytes resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def test_every_change_comes_once_in_order_through_random_rollbacks_and_disconnects(
    served: DaemonProcess, connect: Connect, execute: Callable[..., Any]
) -> None:
    chance, found, client = random.Random(7), list[int](), connect()
    client.subscribe()
    for first in range(0, 5_000, 50):
        execute("INSERT INTO t VALUES " + ",".join(f"({i}, 'x')" for i in range(first, first + 50)))
    while len(found) < 5_000:
        batch = following(client, chance.randint(1, 5))
        match chance.random():
            case chosen if chosen < 0.2:
                client.roll_back(chance.choice([0, batch.id]))
            case chosen if chosen < 0.3:
                client.close()
                client = connect()
                client.subscribe()
            case _:
                client.ack(batch.id)
                found += [int(row["id"] or -1) for _, row in batch.rows()]
    assert found == list(range(5_000))
