"""Cursors of Canal and Debezium on real servers: carried over exactly, refused when they are another binlog's, and
written back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from headrace.cli.main import main
from headrace.moving.foreign import ForeignCursor, start_of
from headrace.mysql.position.search import PositionError
from headrace.mysql.schema.states import reached
from headrace.settings.destination import SourceSettings
from headrace.settings.values import StartAt, StartGtid, start_text
from tests.configured import load
from tests.once import make_topic
from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl
from tests.versions import long

pytestmark = pytest.mark.server

BEGAN = 1_700_000_000
"""When the first transaction was written, in seconds since 1970; each later one a second later."""


class Binlog:
    """Transactions of a row each, 1 to 6, with a statement behind the third; and where their events begin."""

    def __init__(self, site: Site) -> None:
        self.site = site
        session = site.session()
        session("CREATE TABLE t (id INT PRIMARY KEY)", "FLUSH BINARY LOGS")
        self.server_id = int(session("SELECT @@server_id")[0][0])
        for number in range(1, 7):
            session(f"SET timestamp = {BEGAN + number}", f"INSERT INTO t VALUES ({number})")
            if number == 3:
                session("CREATE TABLE u (id INT PRIMARY KEY)")
        self.file = session("SHOW BINARY LOGS")[-1][0]
        self.events = session(f"SHOW BINLOG EVENTS IN '{self.file}'")

    def places(self, kind: str, text: str = "") -> list[int]:
        """Where events of a kind begin."""
        return [int(row[1]) for row in self.events if row[2].lower().startswith(kind) and text in row[5]]

    def groups(self) -> list[int]:
        """Where transactions and statements begin: six, the statement among them fourth, and the end."""
        begins = [int(row[1]) for row in self.events if row[2] in ("Gtid", "Anonymous_Gtid")]
        return [*begins, int(self.events[-1][4])]

    def cursor(self, offset: int, number: int, **more: Any) -> ForeignCursor:
        """Canal's, at an event of a transaction."""
        time_ms = (BEGAN + number) * 1000
        return ForeignCursor(self.file, offset, "", time_ms, self.server_id, inclusive=True, **more)

    def source(self) -> SourceSettings:
        server = self.site.server
        return SourceSettings.model_validate(
            {"host": server.host, "port": server.port, "user": "canal", "password": "canal"}
        )


both = pytest.mark.parametrize("mysql", ["mysql", *long("mariadb", "mysql56")], indirect=True)


@pytest.fixture
def binlog(mysql_site: Site) -> Binlog:
    return Binlog(mysql_site)


async def offset_of(binlog: Binlog, cursor: ForeignCursor) -> tuple[int, list[str]]:
    found = await start_of(binlog.source(), cursor)
    assert isinstance(found.start, StartAt)
    assert found.start.file == binlog.file
    return found.start.offset, found.notes


@both
async def test_after_an_event_that_ends_its_transaction_the_next_one_is_read(binlog: Binlog) -> None:
    commits, groups = binlog.places("xid"), binlog.groups()
    assert await offset_of(binlog, binlog.cursor(commits[1], 2)) == (groups[2], [])
    assert await offset_of(binlog, binlog.cursor(commits[5], 6)) == (groups[7], []), "the end of the binlog"
    statement = binlog.places("query", "CREATE TABLE u")[0]
    assert await offset_of(binlog, binlog.cursor(statement, 3)) == (groups[4], [])


@both
async def test_at_any_other_event_the_transaction_is_read_whole(binlog: Binlog) -> None:
    for offset in (*binlog.places("query", "BEGIN")[2:3], binlog.places("write_rows")[2]):
        begin, notes = await offset_of(binlog, binlog.cursor(offset, 3))
        assert begin == binlog.groups()[2]
        assert "comes again" in notes[0]


@both
async def test_debezium_s_offset_is_where_reading_begins(binlog: Binlog) -> None:
    begin, second = binlog.places("table_map")[2], binlog.groups()[1]
    assert await offset_of(binlog, ForeignCursor(binlog.file, begin)) == (binlog.groups()[2], [])
    assert await offset_of(binlog, ForeignCursor(binlog.file, second)) == (second, [])
    found, notes = await offset_of(binlog, ForeignCursor(binlog.file, begin, inside=True))
    assert found == binlog.groups()[2]
    assert "what was sent of it comes again" in notes[0]


async def test_gtids_count_before_file_and_offset(binlog: Binlog) -> None:
    executed = str(binlog.site.run("SELECT @@global.gtid_executed")[0][0]).replace("\n", "")
    found = await start_of(binlog.source(), ForeignCursor("gone.000001", 4, executed))
    assert isinstance(found.start, StartGtid)
    assert start_text(found.start) == executed.lower()
    with pytest.raises(PositionError, match="never executed"):
        await start_of(binlog.source(), ForeignCursor(gtids="8bf066dd-e6a3-11f1-b84d-02fc00000001:1-6"))


async def test_a_gtid_set_with_the_transaction_that_canal_was_in_loses_nothing_of_it(binlog: Binlog) -> None:
    """Canal adds a transaction to its set when it begins."""
    executed = str(binlog.site.run("SELECT @@global.gtid_executed")[0][0]).replace("\n", "")
    inside = ForeignCursor(
        binlog.file, binlog.places("table_map")[2], executed, (BEGAN + 3) * 1000, binlog.server_id, inclusive=True
    )
    assert (await offset_of(binlog, inside))[0] == binlog.groups()[2]
    elsewhere = await start_of(binlog.source(), replace(inside, server_id=binlog.server_id + 1))
    assert isinstance(elsewhere.start, StartAt)
    assert reached((binlog.file, binlog.groups()[2]), (elsewhere.start.file, elsewhere.start.offset))
    assert "the cursor's GTID set has the transaction in which the last change was" in " ".join(elsewhere.notes)


async def test_a_time_alone_is_the_first_transaction_of_then(binlog: Binlog) -> None:
    at, _ = await offset_of(binlog, ForeignCursor(time_ms=4_000_000_000_000))
    assert at == binlog.groups()[-1]


@both
async def test_a_cursor_of_another_binlog_is_refused(binlog: Binlog) -> None:
    commit = binlog.places("xid")[1]
    with pytest.raises(PositionError, match="is another file than the cursor's"):
        await start_of(binlog.source(), binlog.cursor(commit, 5))
    with pytest.raises(PositionError, match="no event begins at"):
        await start_of(binlog.source(), binlog.cursor(commit + 1, 2))
    with pytest.raises(PositionError, match="does not list gone"):
        await start_of(binlog.source(), ForeignCursor("gone.000001", 4))
    with pytest.raises(PositionError, match="beyond its end"):
        await start_of(binlog.source(), ForeignCursor(binlog.file, 1 << 30))
    other = ForeignCursor(binlog.file, commit, "", (BEGAN + 2) * 1000, binlog.server_id + 1, inclusive=True)
    assert "executed by the server" in (await start_of(binlog.source(), other)).notes[0]


# -- from Canal and back ------------------------------------------------------------------------------------------


def canal_conf(folder: Path, site: Site) -> Path:
    conf = folder / "conf"
    (conf / "shop").mkdir(parents=True)
    (conf / "canal.properties").write_text(
        "canal.serverMode = kafka\ncanal.destinations = shop\nkafka.bootstrap.servers = 127.0.0.1:1\n"
    )
    (conf / "shop/instance.properties").write_text(
        f"canal.instance.master.address={site.server.host}:{site.server.port}\n"
        "canal.instance.dbUsername=canal\ncanal.instance.dbPassword=canal\n"
        f"canal.instance.filter.regex={site.schema}\\\\..*\ncanal.mq.topic=shop\n"
    )
    return conf


def canals(cursor: ForeignCursor, site: Site) -> bytes:
    address = {"address": site.server.host, "port": site.server.port}
    place = {"journalName": cursor.file, "position": cursor.offset, "timestamp": cursor.time_ms}
    more = {"gtid": "", "included": False, "serverId": cursor.server_id}
    return json.dumps({"identity": {"slaveId": -1, "sourceAddress": address}, "postion": {**place, **more}}).encode()


def test_a_destination_continues_exactly_after_canal_s_cursor_and_canal_after_it(
    binlog: Binlog,
    zookeeper: Any,
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, made, node = binlog.site, tmp_path / "made", "/otter/canal/destinations/shop/1001/cursor"
    conf, client = canal_conf(tmp_path, site), KazooClient(zookeeper.hosts)
    client.start()
    try:
        command = ["import", "canal", str(conf), "--zookeeper", zookeeper.hosts, "--out", str(made)]
        client.create(node, canals(binlog.cursor(binlog.places("xid")[2], 5), site), makepath=True)
        assert main(command) == 1
        assert "is another file than the cursor's" in capsys.readouterr().err
        assert not made.exists()
        client.set(node, canals(binlog.cursor(binlog.places("xid")[2], 3), site))
        assert main(command) == 0
        text = (made / "destinations/shop.toml").read_text()
        assert load(made / "headrace.toml", {}).destinations["shop"].source.start == StartAt(
            binlog.file, binlog.groups()[3]
        )
        text = text.replace("${credential:shop-source-password}", "${TEST_PASSWORD}")
        process = daemon(shop=f'{text.partition("[route]")[0]}[sink]\ntype = "jsonl"\npath = "{out}"\n').start()
        eventually(lambda: sum(len(one["data"]) for one in read_jsonl(out)) >= 3)
        export = ["export", "canal", "shop", "--zookeeper", zookeeper.hosts, "--yes", "--config"]
        export.append(str(process.folder / "headrace.toml"))
        monkeypatch.chdir(process.folder)
        monkeypatch.setenv("TEST_PASSWORD", "canal")
        assert main(export) == 1
        assert "is run by" in capsys.readouterr().err
        assert process.terminate() == 0
        assert [row["id"] for one in read_jsonl(out) for row in one["data"]] == ["4", "5", "6"]
        client.create("/otter/canal/destinations/shop/running", b"{}")
        assert main(export) == 1
        assert "Canal runs shop" in capsys.readouterr().err
        adopt = ["adopt", "canal", "shop", "--zookeeper", zookeeper.hosts, "--wait", "100ms", "--yes", *export[-2:]]
        assert main(adopt) == 1
        assert "Canal still runs shop after 0.1 s" in capsys.readouterr().err
        client.delete("/otter/canal/destinations/shop/running")
        assert main(export) == 0
        exported = client.get(node)[0]
        written = json.loads(exported)
        client.set(node, canals(binlog.cursor(binlog.places("xid")[2], 3), site))
        for published, offset in ((True, binlog.groups()[-2]), (False, binlog.groups()[3])):
            if not published:
                out.write_text("")
            # The answer of ZooKeeper takes longer, and says that Canal does not run.
            assert main(["1us" if word == "100ms" else word for word in adopt]) == 0
            printed = capsys.readouterr().out
            assert f"{4 if published else 0} changes after it are published already" in printed
            assert f"the position is {binlog.file}:{offset}" in printed
        client.set(node, exported)
    finally:
        client.stop()
        client.close()
    assert written["@type"] == "com.alibaba.otter.canal.protocol.position.LogPosition"
    assert written["identity"]["sourceAddress"] == {"address": site.server.host, "port": site.server.port}
    assert written["postion"]["journalName"] == binlog.file
    assert written["postion"]["position"] == binlog.groups()[-1]
    assert written["postion"]["serverId"] == binlog.server_id
    again = tmp_path / "again"
    assert main(["import", "canal", str(conf), "--zookeeper", zookeeper.hosts, "--out", str(again)]) == 0
    start = load(again / "headrace.toml", {}).destinations["shop"].source.start
    assert start_text(start).replace("\n", "") == written["postion"]["gtid"]


# -- from Debezium and back ---------------------------------------------------------------------------------------


async def test_debezium_s_offset_is_read_from_kafka_and_written_back(
    binlog: Binlog,
    kafka: Any,
    start: Callable[..., DaemonProcess],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, topic = binlog.site, f"offsets-{binlog.site.schema}"
    await make_topic(kafka.bootstrap_servers, topic, partitions=3)
    quiet = "[heartbeat]\nenabled = false"
    process = start(site, start=f"{binlog.file}:{binlog.groups()[2]}", more=quiet)
    process.wait("shop", lambda status: status["position"]["offset"] == binlog.groups()[-1])
    assert process.terminate() == 0
    monkeypatch.chdir(process.folder)
    monkeypatch.setenv("TEST_PASSWORD", "canal")

    async def run(*words: str) -> int:
        return await asyncio.to_thread(main, words)

    options = ["--connector", "inventory", "--prefix", "p", "--config", "headrace.toml"]
    kafka_options = ["--offsets", topic, "--bootstrap", kafka.bootstrap_servers]
    assert await run("export", "debezium", "shop", *options, *kafka_options, "--yes") == 0
    assert await run("export", "debezium", "shop", *options, "--file", "offsets.json") == 0
    made = json.loads((process.folder / "offsets.json").read_text())["offsets"][0]
    assert made["partition"] == {"server": "p"}
    assert (made["offset"]["file"], made["offset"]["pos"]) == (binlog.file, binlog.groups()[-1])
    assert await run("export", "debezium", "shop", *options, "--file", "offsets.json") == 1
    assert "is there already and stays as it is" in capsys.readouterr().err
    config = {"connector.class": "io.debezium.connector.mysql.MySqlConnector", "topic.prefix": "p"}
    source = {"hostname": site.server.host, "port": site.server.port, "user": "canal", "password": "canal"}
    config |= {f"database.{key}": value for key, value in source.items()}
    file = tmp_path / "inventory.json"
    file.write_text(json.dumps({"name": "inventory", "config": config}))
    assert await run("import", "debezium", str(file), *kafka_options, "--out", str(tmp_path / "made")) == 0
    found = load(tmp_path / "made/headrace.toml", {}).destinations["inventory"].source
    assert (start_text(found.start), found.snapshot) == (made["offset"]["gtids"], "never")


def test_without_messages_to_read_back_adopt_goes_on_after_the_event_of_canal_s_cursor(
    mysql_site: Site,
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
) -> None:
    """Within the transaction: what Canal's client has acknowledged does not come again."""
    site = mysql_site
    process = daemon(shop=destination_toml(site.server, site.schema, 'type = "null"')).start()
    process.wait_state("shop", "STREAMING")
    assert process.terminate() == 0
    site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    session = site.session()
    session("BEGIN", *(f"INSERT INTO t VALUES ({number})" for number in (1, 2, 3)), "COMMIT")
    file = session("SHOW BINARY LOGS")[-1][0]
    events = session(f"SHOW BINLOG EVENTS IN '{file}'")
    begin = [int(row[1]) for row in events if row[2] in ("Gtid", "Anonymous_Gtid")][-1]
    second = [int(row[1]) for row in events if row[2].startswith("Write_rows")][-2]
    cursor, meta = ForeignCursor(file, second, inclusive=True), tmp_path / "meta.dat"
    client = {"clientIdentity": {"clientId": 1001, "destination": "old"}, "cursor": json.loads(canals(cursor, site))}
    meta.write_text(json.dumps({"clientDatas": [client], "destination": "old"}))
    status, said = process.command("adopt", "canal", "shop", "--as", "old", "--meta", str(meta), "--yes")
    assert status == 0, said
    assert "can't be read back: what was published after the cursor comes again" in said
    assert "published by the other system" in said
    assert "given up" not in said
    assert f"the position is {file}:{begin}+2" in said
