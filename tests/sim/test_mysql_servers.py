"""The model of MySQL as servers that lose, change and copy what they had: what the daemon's source makes of it."""

from __future__ import annotations

import pytest

from headrace.errors import SourceChanged, SourceUnreachable
from tests.sim.reading import T, model, reading, seen, serving, shop, source_of, truth, until


async def test_a_crash_loses_the_tail_and_the_numbers_of_lost_transactions_are_given_again() -> None:
    server = model()
    client = shop(server, T, "CREATE TABLE plain (a INT)")
    for number in range(5):
        client.insert("t", (number, "before", 0))
    async with serving(server) as port:
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            position = read.stream.position()
        client.insert("plain", (1,))
        client.update("t", 3, {"v": "lost"})
        client.ddl("ALTER TABLE t ADD lost INT")
        client.delete("t", 4)
        assert server.crash(lose=6) == 6
        with pytest.raises(SourceUnreachable):
            await source_of(port).open(position)
        server.start()
        client = server.session()
        assert client.query("SELECT * FROM shop.t") == [{"id": n, "v": "before", "n": 0} for n in range(3)]
        assert client.query("SELECT COUNT(*) AS n FROM shop.plain") == [{"n": 0}]
        with pytest.raises(SourceChanged):
            await source_of(port).open(position)
        client.insert("shop.t", (3, "again", 0))
        assert server.history[-1].gtid == f"{server.uuid}:{len(server.history)}"
        with pytest.raises(SourceChanged):
            await source_of(port).open(position)
        async with reading(source_of(port, on_diverged="continue"), position) as read:
            assert read.opened.gap is not None
            assert await read.to_end(server) == truth(server.history)[-1:]


async def test_a_prepared_xa_transaction_survives_a_crash_unless_it_was_in_the_lost_tail() -> None:
    server = model()
    client = shop(server, T)
    for number, name in enumerate("ab"):
        client.xa_start(name)
        client.insert("t", (number, name, 0))
        client.xa_end(name)
        client.xa_prepare(name)
    client.xa_commit("a")
    assert server.crash(lose=2) == 2
    server.start()
    client = server.session()
    assert [one["data"] for one in client.query("XA RECOVER")] == [b"a"]
    client.xa_commit("a")
    async with serving(server) as port, reading(source_of(port)) as read:
        assert await read.to_end(server) == truth(server.history)
        assert [one[4] for one in seen(read.changes)] == [(0, "a", 0)]


async def test_an_old_copy_that_is_restored_is_another_history_of_the_same_server() -> None:
    server = model()
    client = shop(server, T)
    client.insert("t", (1, "a", 0))
    backup = server.backup()
    client.insert("t", (2, "b", 0))
    async with serving(server) as port:
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            position = read.stream.position()
        server.restore(backup)
        server.start()
        client = server.session()
        assert client.get("shop.t", 2) is None
        client.insert("shop.t", (3, "another", 0))
        with pytest.raises(SourceChanged):
            await source_of(port).open(position)
        async with reading(source_of(port)) as read:
            assert await read.to_end(server) == truth(server.history)


async def test_a_reset_removes_binlogs_and_gtids_and_ends_a_stream() -> None:
    server = model()
    client = shop(server, T)
    client.insert("t", (1, "a", 0))
    async with serving(server) as port:
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            position = read.stream.position()
            client.execute("RESET BINARY LOGS AND GTIDS")
            with pytest.raises(Exception, match="could not find next log"):
                await read.until(lambda: False)
        with pytest.raises(SourceChanged):
            await source_of(port).open(position)
        client.insert("t", (2, "b", 0))
        assert server.history[-1].gtid == f"{server.uuid}:1"
        assert server.engine.binlog.names == ["binlog.000001"]


async def test_a_replica_has_the_same_transactions_in_binlogs_of_its_own() -> None:
    server = model(binlog_row_metadata="FULL")
    client = shop(server, T, "CREATE TABLE plain (a INT)")
    client.insert("t", (1, "a", 0))
    replica = server.replica(prefix="other", first=40)
    client.insert("t", (2, "b", 0))
    client.insert("plain", (1,), (1,))
    client.ddl("ALTER TABLE t ADD more INT")
    client.update("t", 1, {"more": 3})
    client.delete("plain", {"a": 1})
    client.xa_start("x")
    client.insert("t", (3, "x", 0, 1))
    client.xa_end("x")
    client.xa_prepare("x")
    client.xa_commit("x")
    assert replica.following is not None
    await until(lambda: replica.following is not None and not replica.following.behind)
    assert truth(replica.history) == truth(server.history)
    assert replica.engine.executed == server.engine.executed
    assert replica.engine.binlog.names == ["other.000040"]
    assert replica.session().query("SELECT * FROM shop.t") == client.query("SELECT * FROM shop.t")
    async with serving(replica) as port, reading(source_of(port)) as read:
        assert await read.to_end(replica) == truth(server.history)[1:]


async def test_a_failover_goes_on_by_gtid_on_a_replica_and_a_shorter_history_is_refused() -> None:
    server = model()
    client = shop(server, T)
    replica = server.replica(lag=lambda: None)
    following = replica.following
    assert following is not None
    for number in range(6):
        client.insert("t", (number, "a", 0))
    following.apply_next(4)
    assert following.behind == 2
    async with serving(server) as port, serving(replica) as other:
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            position = read.stream.position()
        with pytest.raises(SourceChanged, match="has not executed 2 transactions"):
            await source_of(other, read_only="accept").open(position)
        following.catch_up()
        replica.promote()
        replica.set_variable("read_only", False)
        replica.session().insert("shop.t", (10, "on the other", 0))
        assert replica.history[-1].uuid == replica.uuid
        async with reading(source_of(other), position) as read:
            assert await read.to_end(replica) == truth(replica.history)[-1:]
            assert read.opened.gap is None


async def test_a_server_that_lost_what_its_replica_has_can_follow_it() -> None:
    server = model()
    client = shop(server, T)
    replica = server.replica()
    client.insert("t", (1, "a", 0))
    await until(lambda: not replica.following or not replica.following.behind)
    assert server.crash(lose=1) == 1
    replica.promote()
    replica.set_variable("read_only", False)
    server.start()
    server.follow(replica)
    replica.session().insert("shop.t", (2, "b", 0))
    await until(lambda: server.engine.executed == replica.engine.executed)
    assert truth(server.history) == truth(replica.history)


async def test_a_server_that_got_another_uuid_goes_on_under_it() -> None:
    server = model()
    client = shop(server, T)
    client.insert("t", (1, "a", 0))
    async with serving(server) as port:
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            position = read.stream.position()
        old, new = server.uuid, "3e11fa47-71ca-11e1-9e33-c80aa9429562"
        server.restart(uuid=new)
        server.session().insert("shop.t", (2, "b", 0))
        assert str(server.engine.executed) == ",\n".join(sorted([f"{new}:1", f"{old}:1-3"]))
        async with reading(source_of(port), position) as read:
            assert await read.to_end(server) == truth(server.history)[1:]


async def test_a_binlog_that_a_dump_reads_is_not_purged() -> None:
    server = model()
    client = shop(server, T)
    server.rotate()
    async with serving(server) as port:
        async with reading(source_of(port, start="binlog.000002:4")) as read:
            await read.to_end(server)
            for number in range(4):
                client.insert("t", (number, "a", 0))
            await read.to_end(server)
            (connection,) = [one for one in server.connections if one.dump is not None]
            connection.pause_writing()
            server.rotate()
            server.rotate()
            server.purge_to("binlog.000004")
            assert server.engine.binlog.names == ["binlog.000002", "binlog.000003", "binlog.000004"]
            connection.resume_writing()
            await read.to_end(server)
            server.purge_to("binlog.000004")
        assert server.engine.binlog.names == ["binlog.000004"]
        assert str(server.engine.purged) == f"{server.uuid}:1-6"
