"""Canal's configuration as headrace's: values, faults, secrets, and the cursors of ZooKeeper and meta.dat."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from headrace.canal_wire.cursor import node_data
from headrace.cli.main import main
from headrace.cli.wiring import ADAPTERS
from headrace.model import Position
from headrace.moving.canal import CanalImport
from headrace.moving.cursors import canal_cursor, made_canal_cursor, meta_cursors, meta_data, parsed_cursor
from headrace.moving.foreign import ForeignCursor
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.values import Start, StartAt, StartGtid, StartLatest, StartTime
from tests.configured import load

COMMON = """\
canal.serverMode = kafka
canal.destinations = shop
canal.auto.scan = false
canal.zookeeper.flush.period = 1000
canal.instance.filter.query.dcl = true
kafka.bootstrap.servers = 127.0.0.1:9092
"""
INSTANCE = """\
canal.instance.master.address=127.0.0.1:3307
canal.instance.dbUsername=canal
canal.instance.dbPassword=Pa${ss"w'ord
canal.instance.filter.regex=shop\\\\..*
canal.mq.topic=shop
"""
GTIDS = "8bf066dd-e6a3-11f1-b84d-02fc00000001:1-6"


def conf(folder: Path, common: str = COMMON, **instances: str) -> Path:
    made = folder / "conf"
    made.mkdir(exist_ok=True)
    (made / "canal.properties").write_text(common)
    for name, text in (instances or {"shop": INSTANCE}).items():
        (made / name).mkdir(exist_ok=True)
        (made / name / "instance.properties").write_text(text)
    return made


def imported(folder: Path, common: str = COMMON, **instances: str) -> Settings:
    """What the daemon reads of what import has written."""
    out = folder / "out"
    assert main(["import", "canal", str(conf(folder, common, **instances)), "--out", str(out)]) == 0
    return load(out / "headrace.toml", {})


def shop(folder: Path, more: str = "", common: str = "") -> DestinationSettings:
    return imported(folder, COMMON + common, shop=INSTANCE + more).destinations["shop"]


def refused(folder: Path, capsys: pytest.CaptureFixture[str], common: str = COMMON, **instances: str) -> list[str]:
    """The problems, without the folder."""
    out = folder / "out"
    assert main(["import", "canal", str(conf(folder, common, **instances)), "--out", str(out)]) == 2
    assert not out.exists()
    *problems, see = capsys.readouterr().err.replace(f"{folder}/conf/", "").splitlines()
    assert see.startswith("see: ")
    return problems


def test_a_destination_reads_the_source_and_tables_that_canal_read(tmp_path: Path) -> None:
    made = shop(tmp_path)
    source = made.source
    assert (source.host, source.port, source.user) == ("127.0.0.1", 3307, "canal")
    assert (source.snapshot, source.tls, made.heartbeat.enabled) == ("never", "preferred", False)
    assert (made.filter.include, made.filter.dcl, made.filter.dml_queries) == (r"shop\..*", False, True)
    assert (made.route.topic, made.sink.type, made.message.format) == ("shop", "kafka", "canal")


def test_operations_and_protobuf_messages_are_as_canal_had_them(tmp_path: Path) -> None:
    more = "canal.instance.filter.dml.delete=true\ncanal.instance.filter.dml.insert=false\n"
    made = shop(tmp_path, more, "canal.mq.flatMessage = false\n")
    assert made.filter.operations == ("insert", "update")
    assert made.message.format == "canal-protobuf"


def test_a_password_is_in_a_file_of_its_own_that_only_its_owner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shop(tmp_path).source.password.get_secret_value() == "Pa${ss\"w'ord"
    secret = tmp_path / "out/secrets/shop-source-password"
    assert secret.stat().st_mode & 0o777 == 0o600
    written = [*tmp_path.glob("out/*.toml"), *tmp_path.glob("out/destinations/*")]
    assert "w'ord" not in capsys.readouterr().out + "".join(file.read_text() for file in written)


def test_properties_without_counterpart_are_named_with_the_reason(tmp_path: Path) -> None:
    shop(tmp_path, "canal.instance.tsdb.dbPassword=hidden\ncanal.instance.multi.stream.on=true\nmy.own=1\n")
    text = (tmp_path / "out/destinations/shop.toml").read_text()
    assert "canal.instance.multi.stream.on: PolarDB-X is not read" in text
    assert "my.own: is not known" in text
    assert "hidden" not in text
    assert "canal.zookeeper.flush.period: not carried over" in (tmp_path / "out/headrace.toml").read_text()


def test_an_instance_s_own_property_counts_before_the_one_for_all(tmp_path: Path) -> None:
    common = "canal.instance.filter.rows = true\ncanal.instance.filter.query.ddl = true\n"
    made = shop(tmp_path, "canal.instance.filter.rows = false\n", common)
    assert (made.filter.rows, made.filter.ddl) == (True, False)


def test_placeholders_are_properties_variables_or_their_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOPIC", "t7")
    instance = INSTANCE.replace("canal.mq.topic=shop", "canal.mq.topic=${SHOP_TOPIC}-${canal.instance.destination:}")
    instance = instance.replace("127.0.0.1:3307", "${shop.host:${nobody:127.0.0.2}}:${shop.port}")
    made = imported(tmp_path, COMMON + "shop.port = 3399\n", shop=instance).destinations["shop"]
    assert (made.route.topic, made.source.host, made.source.port) == ("t7-shop", "127.0.0.2", 3399)


def test_auto_scan_takes_the_folders_that_are_not_listed(tmp_path: Path) -> None:
    common = COMMON.replace("auto.scan = false", "auto.scan = true")
    settings = imported(tmp_path, common, shop=INSTANCE, Member=INSTANCE, spring=INSTANCE)
    assert [*settings.destinations] == ["member", "shop"]


def test_zookeeper_is_what_daemons_share_destinations_by(tmp_path: Path) -> None:
    settings = imported(tmp_path, f"{COMMON}canal.zkServers = zk1:2181,zk2\n", shop=INSTANCE)
    assert settings.cluster is not None
    assert settings.cluster.model_dump()["hosts"] == ("zk1:2181", "zk2:2181")


def test_partition_hashes_and_dynamic_topics_are_canals(tmp_path: Path) -> None:
    route = shop(
        tmp_path,
        "canal.mq.dynamicTopic=a.b:shop\\\\.users,shop\\\\.items\ncanal.mq.partition=3\ncanal.mq.partitionsNum=4\n"
        "canal.mq.partitionHash=shop\\\\.users:id^name\n",
        "canal.mq.database.hash = false\n",
    ).route
    assert route.dynamic_topic == r"a_b:shop\.users,shop\.items"
    assert (route.partitions, route.partition_hash, route.hash) == (4, r"shop\.users:id^name", "canal")
    assert (route.partition, route.canal_hash_database) == (0, False)


def test_a_hash_without_a_number_of_partitions_has_no_meaning_as_in_canal(tmp_path: Path) -> None:
    route = shop(tmp_path, "canal.mq.partition=3\ncanal.mq.partitionHash=shop\\\\.users:id\n").route
    assert (route.partition, route.partition_hash) == (3, "")


def test_queries_are_left_out_where_columns_are_hidden(tmp_path: Path) -> None:
    made = shop(tmp_path, "canal.instance.filter.black.field=shop.users:phone/mail\n").filter
    assert (made.exclude_columns, made.dml_queries) == ("shop.users:phone/mail", False)


@pytest.mark.parametrize(
    ("properties", "start"),
    [
        ("", StartLatest()),
        (
            "canal.instance.master.journal.name=mysql-bin.000007\ncanal.instance.master.position=154\n",
            StartAt("mysql-bin.000007", 154),
        ),
        ("canal.instance.master.journal.name=mysql-bin.000007\n", StartAt("mysql-bin.000007", 4)),
        ("canal.instance.master.timestamp=1700000000123\n", StartTime(datetime.fromtimestamp(1700000000.123, UTC))),
        ("canal.instance.master.gtid=8bf066dd-e6a3-11f1-b84d-02fc00000001:1-6\n", StartGtid(GTIDS)),
    ],
)
def test_without_a_cursor_it_begins_where_canal_would(properties: str, start: Start, tmp_path: Path) -> None:
    assert shop(tmp_path, properties).source.start == start


def test_standby_and_tls_are_those_of_the_instance(tmp_path: Path) -> None:
    source = shop(
        tmp_path, "canal.instance.standby.address=db2:3308\ncanal.instance.master.sslMode=VERIFY_IDENTITY\n"
    ).source
    assert [(one.host, one.port) for one in source.standby] == [("db2", 3308)]
    assert source.tls == "verified"


RABBIT = """\
canal.serverMode = rabbitMQ
canal.destinations = shop
rabbitmq.host = 192.168.101.68
rabbitmq.virtual.host = /xzb
rabbitmq.exchange = exchange.canal
rabbitmq.username = xzb
rabbitmq.password = secret
rabbitmq.deliveryMode = 2
"""


def test_rabbitmq(tmp_path: Path) -> None:
    dynamic = "canal.mq.dynamicTopic=canal-mq-shop:shop\\\\.serve_sync\n"
    made = imported(tmp_path, RABBIT, shop=INSTANCE + dynamic).destinations["shop"]
    sink = made.sink.model_dump()
    assert (sink["hosts"], sink["virtual_host"], sink["exchange"]) == (
        ("192.168.101.68:5672",),
        "/xzb",
        "exchange.canal",
    )
    assert (sink["user"], sink["password"].get_secret_value()) == ("xzb", "secret")
    assert made.route.dynamic_topic == r"canal-mq-shop:shop\.serve_sync"


def test_rocketmq_as_canal_1_1_4_writes_it(tmp_path: Path) -> None:
    common = "canal.serverMode = RocketMQ\ncanal.destinations = shop\ncanal.mq.servers = 10.111.105.41:9876\n"
    sink = imported(tmp_path, common, shop=INSTANCE).destinations["shop"].sink.model_dump()
    assert (sink["type"], sink["hosts"], sink["tag"]) == ("rocketmq", ("10.111.105.41:8081",), "")


def test_kafka_with_an_account(tmp_path: Path) -> None:
    made = shop(
        tmp_path,
        common="kafka.compression.type = LZ4\nkafka.security.protocol = SASL_SSL\nkafka.sasl.mechanism = PLAIN\n"
        'kafka.sasl.jaas.config = x required username=\\"ann\\" password=\\"p;q\\";\n',
    ).sink.model_dump()
    assert (made["compression"], made["tls"], made["sasl_mechanism"]) == ("lz4", "required", "PLAIN")
    assert (made["user"], made["password"].get_secret_value()) == ("ann", "p;q")


def test_the_zone_of_canals_host_is_asked_for_and_may_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shop(tmp_path).message.time_zone == "UTC"
    assert "TIMESTAMP is printed in UTC" in capsys.readouterr().out
    command = ["import", "canal", str(conf(tmp_path)), "--out", str(tmp_path / "other"), "--time-zone"]
    assert main([*command, "Asia/Nowhere"]) == 2
    assert capsys.readouterr().err.startswith("--time-zone: should be a time zone")
    assert main([*command, "Asia/Shanghai"]) == 0
    assert "TIMESTAMP" not in capsys.readouterr().out
    made = load(tmp_path / "other" / "headrace.toml", {}).destinations["shop"]
    assert made.message.time_zone == "Asia/Shanghai"


def test_canals_own_server_is_a_sink_where_there_is_one(tmp_path: Path) -> None:
    problems = list[str]()
    common = "canal.serverMode = tcp\ncanal.port = 11112\ncanal.destinations = shop\n"
    made = CanalImport(conf(tmp_path, common), {"canal"}, {}, problems)
    draft = made.drafts()[1]
    assert (problems, draft.get("sink.type"), draft.get("sink.listen")) == ([], "canal", "127.0.0.1:11112")


def test_what_canals_clients_get_is_entries_with_those_of_transactions(tmp_path: Path) -> None:
    common = "canal.serverMode = tcp\ncanal.destinations = shop\n"
    read = imported(tmp_path, common, shop=INSTANCE).destinations["shop"]
    assert (read.message.format, read.filter.transactions) == ("canal-protobuf", True)


def test_canals_clients_find_what_was_a_server_of_canal_in_zookeeper(tmp_path: Path) -> None:
    common = (
        "canal.destinations = shop\ncanal.zkServers = zk1:2181,zk2:2181/shops\ncanal.register.ip = 10.0.0.1\n"
        "canal.instance.filter.transaction.entry = true\n"
    )
    made = imported(tmp_path, common, shop=INSTANCE).destinations["shop"]
    sink = made.sink.model_dump()
    assert (sink["zookeeper_path"], sink["advertise"]) == ("/shops/otter/canal", "10.0.0.1:11111")
    assert not made.filter.transactions


# -- faults -------------------------------------------------------------------------------------------------------


def test_all_faults_come_at_once_with_file_and_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = COMMON.replace("= shop", "= shop,gone") + "canal.instance.filter.rows = perhaps\nbad = \\u12\n"
    instance = INSTANCE.replace("3307", "x").replace("shop\\\\..*", "sh(op") + "canal.mq.partitionsNum=${none}\n"
    problems = refused(tmp_path, capsys, common, shop=instance)
    assert "canal.properties: line 8: a backslash and u should have four hexadecimal digits after them" in problems
    assert any(one.startswith("canal.properties: line 2: canal.destinations: gone has no file") for one in problems)
    assert "canal.properties: line 7: canal.instance.filter.rows: should be true or false" in problems
    assert "shop/instance.properties: line 1: canal.instance.master.address: should be host:port" in problems
    assert any(
        one.startswith("shop/instance.properties: line 6: canal.mq.partitionsNum: ${none} is") for one in problems
    )
    assert any(one.startswith("shop/instance.properties: line 4: canal.instance.filter.regex: ") for one in problems)
    assert len(problems) == 6


def test_a_refused_value_is_reported_with_canals_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = INSTANCE.replace("shop\\\\..*", "sh(op").replace("canal.mq.topic=shop", "canal.mq.topic=a b")
    first, second = sorted(refused(tmp_path, capsys, shop=instance))
    assert first.startswith("shop/instance.properties: line 4: canal.instance.filter.regex: ")
    assert "(filter.include)" in first
    assert second.startswith("shop/instance.properties: line 5: canal.mq.topic: ")


@pytest.mark.parametrize(
    ("common", "reported"),
    [
        ("canal.serverMode = pulsarMQ\n", "there is no sink for pulsarmq"),
        ("canal.instance.global.mode = manager\n", "kept by Canal Admin"),
        ("canal.instance.global.spring.xml = classpath:spring/group-instance.xml\n", "of several sources"),
    ],
)
def test_what_can_not_be_carried_over_is_refused(
    common: str, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reported in refused(tmp_path, capsys, COMMON + common, shop=INSTANCE)[0]


def test_a_folder_that_is_none_of_canals_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "canal", str(tmp_path)]) == 2
    assert "canal.properties: the file can't be read: No such file or directory" in capsys.readouterr().err


def test_a_file_that_is_there_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out/destinations").mkdir(parents=True)
    (tmp_path / "out/destinations/shop.toml").write_text("mine")
    assert main(["import", "canal", str(conf(tmp_path)), "--out", str(tmp_path / "out")]) == 1
    assert "shop.toml: there already, so nothing is written" in capsys.readouterr().err
    assert [one for one in (tmp_path / "out").rglob("*") if one.is_file()] == [tmp_path / "out/destinations/shop.toml"]
    assert (tmp_path / "out/destinations/shop.toml").read_text() == "mine"


# -- cursors ------------------------------------------------------------------------------------------------------

NODE = (
    b'{"@type":"com.alibaba.otter.canal.protocol.position.LogPosition","identity":{"slaveId":-1,"sourceAddress":'
    b'{"address":"localhost","port":3306}},"postion":{"gtid":"","included":false,"journalName":"mysql-bin.000055",'
    b'"position":486221,"serverId":1,"timestamp":1695341830000}}'
)


def test_a_cursor_is_read_as_canal_keeps_it_in_zookeeper() -> None:
    cursor = ForeignCursor("mysql-bin.000055", 486221, "", 1695341830000, 1, inclusive=True)
    assert parsed_cursor(NODE) == cursor
    assert canal_cursor(orjson.loads(NODE)["postion"]) == cursor


def test_cursors_are_read_out_of_a_meta_dat(tmp_path: Path) -> None:
    raw = {**orjson.loads(NODE)}
    identity = {"clientId": 1001, "destination": "shop", "filter": ""}
    file = tmp_path / "meta.dat"
    file.write_bytes(
        orjson.dumps({"clientDatas": [{"clientIdentity": identity, "cursor": raw}], "destination": "shop"})
    )
    problems = list[str]()
    assert meta_cursors(file, {"shop": "shop"}, problems) == {"shop": parsed_cursor(NODE)}
    assert problems == []


@pytest.mark.parametrize(
    ("data", "reported"),
    [
        (b"{", "line 1: is no JSON"),
        (b"[]", "is no meta.dat of Canal"),
        (
            b'{"clientDatas": [{"clientIdentity": {"clientId": 1001, "destination": "x"}, "cursor": {"postion": {}}}]}',
            "is about x, which is no destination of the folder",
        ),
        (b'{"clientDatas": [{}]}', "is no meta.dat of Canal"),
        (
            b'{"clientDatas": [{"clientIdentity": {"clientId": 1001, "destination": "d"}, "cursor": {"postion": {}}}]}',
            "neither journalName nor gtid nor timestamp",
        ),
    ],
)
def test_a_broken_meta_dat_is_reported(data: bytes, reported: str, tmp_path: Path) -> None:
    (tmp_path / "meta.dat").write_bytes(data)
    problems = list[str]()
    assert meta_cursors(tmp_path / "meta.dat", {"d": "d"}, problems) == {}
    assert reported in problems[0]


def test_a_position_becomes_a_cursor_that_import_reads(tmp_path: Path) -> None:
    position = Position("uuid", "b.000003", 1234, "", commit_time_us=1700000000123456)
    cursor = made_canal_cursor(position, ("db1", 3306), 7)
    read = parsed_cursor(node_data(cursor))
    assert (read.file, read.offset, read.time_ms, read.server_id) == ("b.000003", 1234, 1700000000123, 7)
    (tmp_path / "meta.dat").write_bytes(meta_data("shop", cursor))
    assert meta_cursors(tmp_path / "meta.dat", {"shop": "shop"}, []) == {"shop": read}


def test_the_modes_of_canal_are_sinks_that_there_are() -> None:
    assert {"kafka", "rocketmq", "rabbitmq"} <= set(ADAPTERS.names("sink"))


def test_a_destination_without_a_cursor_is_refused_unless_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "meta.dat").write_bytes(b'{"clientDatas": [], "destination": "shop"}')
    command = ["import", "canal", str(conf(tmp_path)), "--meta", str(tmp_path / "meta.dat")]
    command += ["--out", str(tmp_path / "out")]
    assert main(command) == 1
    assert "there is no cursor of shop" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, "--no-cursor", "shop"]) == 0
    assert "start" in (tmp_path / "out/destinations/shop.toml").read_text()
