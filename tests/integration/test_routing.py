"""Routing on real servers: partitions by key, topics by table, conditions and masks, and schema changes among them."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pymysql
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.support import DaemonProcess, destination_toml, read_topic, replay_by_pos

pytestmark = pytest.mark.server
PARTITIONS = 8
_topics = itertools.count(1)


async def make_topic(kafka: Any, partitions: int = PARTITIONS) -> str:
    name = f"routed{next(_topics)}"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, partitions, 1)])
    finally:
        await admin.close()
    return name


def site(mysql: Any, schema: str, kafka: Any, topic: str, route: str = "", *, sink: str = "", rest: str = "") -> str:
    where = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\n{sink}'
    text = destination_toml(mysql, schema, where, more=rest)
    return text.replace(f'topic = "{schema}"\n', f'topic = "{topic}"\n{route}\n')


async def read(kafka: Any, topic: str, partitions: int = PARTITIONS) -> list[list[dict[str, Any]]]:
    """The messages of each partition."""
    found = []
    for partition in range(partitions):
        records = await read_topic(kafka.bootstrap_servers, topic, partition)
        found.append([json.loads(record.value) for record in records])
    return found


def caught_up(daemon: DaemonProcess, rows: int) -> None:
    """Until so many rows are confirmed."""
    daemon.wait("shop", lambda status: status["rows"] >= rows and not status["oldest_unconfirmed_seconds"], 60)


def table_of(execute: Callable[..., Any], name: str) -> dict[str, dict[str, Any]]:
    columns = [row[0] for row in execute(f"SHOW COLUMNS FROM {name}")]
    listed = ",".join(f"CAST(`{column}` AS CHAR)" for column in columns)
    return {row[0]: dict(zip(columns, row, strict=True)) for row in execute(f"SELECT {listed} FROM {name}")}


def change_at_random(mysql: Any, schema: str, seed: int, rounds: int) -> None:
    """Inserts, updates that move keys and partitions, and deletes, in transactions of one row and of many."""
    dice = random.Random(seed)
    with pymysql.connect(**mysql.connection("root"), database=schema) as connection, connection.cursor() as cursor:
        for number in range(rounds):
            kind, key, user = dice.random(), dice.randrange(200), dice.randrange(20)
            if kind < 0.4:
                cursor.execute("REPLACE INTO t (id, user_id, n) VALUES (%s, %s, %s)", (key, user, number))
            elif kind < 0.6:
                cursor.execute(
                    "UPDATE IGNORE t SET id = id + 1000, n = %s WHERE id BETWEEN %s AND %s", (number, key, key + 9)
                )
            elif kind < 0.75:
                cursor.execute(
                    "UPDATE IGNORE t SET id = id - 1000, n = %s WHERE id > 999 AND id < %s", (number, 1000 + key)
                )
            elif kind < 0.9:
                cursor.execute("UPDATE t SET user_id = (user_id + 7) %% 20, n = %s WHERE user_id = %s", (number, user))
            else:
                cursor.execute("DELETE FROM t WHERE id BETWEEN %s AND %s", (key, key + 3))
            if dice.random() < 0.5:
                connection.commit()
        connection.commit()


@pytest.mark.parametrize(
    ("rule", "rows_per_message", "sink"),
    [
        ("$pk$", 0, ""),
        ("$pk$", 1, ""),
        ("user_id", 0, ""),
        ("user_id", 3, 'delivery = "exactly_once"'),
    ],
)
async def test_rows_are_spread_by_key_and_the_newest_number_is_the_truth(
    mysql: Any,
    kafka: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    rule: str,
    rows_per_message: int,
    sink: str,
) -> None:
    """Keys and partitions of rows change within single statements; consumers of several partitions compare `_pos`."""
    execute("CREATE TABLE t (id INT PRIMARY KEY, user_id INT NOT NULL, n INT NOT NULL, KEY (user_id))")
    topic = await make_topic(kafka)
    route = f"partitions = {PARTITIONS}\npartition_hash = '.*\\..*:{rule}'"
    apart = f'{sink}\nstate_topic = "{topic}-state"'  # another test's position is not ours
    text = site(mysql, schema, kafka, topic, route, sink=apart)
    text = text.replace("[route]", f"[message]\nrows_per_message = {rows_per_message}\n[route]")
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    change_at_random(mysql, schema, seed=len(rule) + rows_per_message, rounds=400)
    execute("ALTER TABLE t ADD COLUMN extra INT NULL")
    change_at_random(mysql, schema, seed=99, rounds=100)
    execute("INSERT INTO t (id, user_id, n) VALUES (999999, 1, 1)")
    wanted = table_of(execute, "t")

    def arrived(status: dict[str, Any]) -> bool:
        return status["lag_seconds"] < 60 and status["position"]["offset"] == _end(execute) != 0

    process.wait("shop", arrived, 60)
    partitions = await read(kafka, topic)
    messages = [message for partition in partitions for message in partition]
    rows = [message for message in messages if not message["isDdl"]]
    image = {key: {"extra": None} | row for key, row in replay_by_pos(rows).items()}
    assert image == wanted
    assert sum(1 for partition in partitions if partition) > PARTITIONS // 2
    if rows_per_message:
        assert max(len(message["data"]) for message in rows) == rows_per_message
    (ddl,) = (message for message in partitions[0] if "extra" in message["sql"])
    for partition in partitions[1:]:
        assert not any(message["isDdl"] for message in partition)
    before = [message for message in rows if int(message["_pos"]) < int(ddl["_pos"])]
    assert all("extra" not in message["data"][0] for message in before)


def _end(execute: Callable[..., Any]) -> int:
    (row,) = execute("SHOW BINARY LOG STATUS")
    return int(row[1])


async def test_a_schema_change_goes_into_each_partition_after_its_rows(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
    topic = await make_topic(kafka)
    route = f"partitions = {PARTITIONS}\npartition_hash = '.*\\..*:$pk$'\nddl_partition = \"all\""
    process = daemon(shop=site(mysql, schema, kafka, topic, route)).start()
    process.wait_state("shop", "STREAMING")
    values = ",".join(f"({i}, 1)" for i in range(500))
    execute(f"INSERT INTO t VALUES {values}", "ALTER TABLE t ADD COLUMN extra INT", "UPDATE t SET n = 2")
    caught_up(process, 1000)
    headers = []
    for partition in range(PARTITIONS):
        records = await read_topic(kafka.bootstrap_servers, topic, partition)
        messages = [json.loads(record.value) for record in records]
        kinds = [message["type"] for message in messages]
        assert kinds == sorted(kinds, key=["INSERT", "ALTER", "UPDATE"].index)
        assert kinds.count("ALTER") == 1
        headers += [dict(record.headers)["headrace-id"] for record in records if b'"ALTER"' in record.value]
    assert len(set(headers)) == PARTITIONS, "each copy has an id of its own"


async def test_topics_follow_the_tables_and_shards_share_one(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    orders, users = await make_topic(kafka, 4), await make_topic(kafka, 1)
    names = ("orders_0", "orders_1", "users", "other")
    execute(*[f"CREATE TABLE {name} (id INT PRIMARY KEY, n INT)" for name in names])
    route = (
        f"dynamic_topic = '{orders}:{schema}\\.orders_\\d,{users}:{schema}\\.users,{schema}\\.log.*'\n"
        f"dynamic_topic_partitions = '{orders}:4'\npartition_hash = '.*\\.orders.*:$pk$'"
    )
    rest = await make_topic(kafka, 1)
    process = daemon(shop=site(mysql, schema, kafka, rest, route)).start()
    process.wait_state("shop", "STREAMING")
    for name in names:
        execute(f"INSERT INTO {name} VALUES " + ",".join(f"({i}, 1)" for i in range(40)))
    execute("CREATE TABLE log_a (id INT PRIMARY KEY)", "INSERT INTO log_a VALUES (1)")
    caught_up(process, 161)
    spread = await read(kafka, orders, 4)
    assert all(spread)
    assert {message["table"] for partition in spread for message in partition} == {"orders_0", "orders_1"}
    for topic, table in ((users, "users"), (rest, "other")):
        (only,) = await read(kafka, topic, 1)
        assert {message["table"] for message in only} == {table}
    (log,) = await read(kafka, f"{schema}_log_a", 1)
    assert [message["type"] for message in log] == ["CREATE", "INSERT"]


async def test_only_what_may_be_seen_goes_out(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    """Rows outside the condition, columns left out, and masked values never reach the topic, nor do old values."""
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, city VARCHAR(20), price DECIMAL(10,2), phone VARCHAR(20), note TEXT)"
        " CHARACTER SET utf8mb4"
    )
    topic = await make_topic(kafka, 1)
    filters = (
        f'exclude_columns = "{schema}\\\\.t:note"\n'
        "[[filter.where]]\ntables = '.*'\nrows = 'city = \"北京\" and price > 100'\n"
        '[[filter.mask]]\ntables = \'.*\'\ncolumns = "phone"\nmask = "hash"\nsalt = "${TEST_PASSWORD}"\n'
    )
    text = site(mysql, schema, kafka, topic).replace("[route]", f"{filters}[route]")
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    execute(
        "INSERT INTO t VALUES (1, '北京', 100.01, '555-0001', 'secret-1'), (2, '上海', 500, '555-0002', 'secret-2')",
        "UPDATE t SET city = '北京', phone = '555-0003' WHERE id = 2",
        "UPDATE t SET phone = '555-0004' WHERE id = 1",
        "UPDATE t SET price = 100 WHERE id = 1",
        "UPDATE t SET note = 'secret-3' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    caught_up(process, 5)
    ((*messages,),) = await read(kafka, topic, 1)
    assert [(message["type"], message["data"][0]["id"]) for message in messages] == [
        ("INSERT", "1"),
        ("INSERT", "2"),
        ("UPDATE", "1"),
        ("DELETE", "1"),
        ("DELETE", "2"),
    ]
    everything = json.dumps(messages, ensure_ascii=False)
    assert "555-" not in everything
    assert "secret" not in everything
    assert "note" not in everything
    first, second = messages[0]["data"][0]["phone"], messages[2]["old"][0]["phone"]
    assert first == second
    assert len(first) == 64
    assert messages[0]["mysqlType"]["phone"] == "varchar(64)"


async def test_the_commands_say_what_the_rules_do(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, user_id INT, city VARCHAR(9))",
        "CREATE TABLE plain (id INT PRIMARY KEY)",
    )
    route = (
        f"partitions = 4\ndynamic_topic = 'o:{schema}\\.orders,gone:{schema}\\.gone'\n"
        f"partition_hash = '{schema}\\.orders:user_id,{schema}\\.nowhere:$pk$'\n"
        "dynamic_topic_partitions = 'o:4,never:9'"
    )
    filters = "[[filter.where]]\ntables = '.*\\.orders'\nrows = \"city <> 'x'\"\n"
    text = site(mysql, schema, kafka, "rest", route, sink="create_topics = true").replace(
        "[route]", f"{filters}[route]"
    )
    process = daemon(shop=text)
    row = '{"id": 7, "user_id": 42, "city": "北京"}'
    status, printed = process.command("route", f"{schema}.orders", "--row", row, "--json")
    assert status == 0, printed
    answer = json.loads(printed)["shop"]
    assert (answer["topic"], answer["topic_rule"]) == ("o", f"o:{schema}\\.orders")
    assert (answer["partition_rule"], answer["key"]) == (f"{schema}\\.orders:user_id", "42")
    assert answer["row"] == {"id": 7, "user_id": 42, "city": "北京"}
    partition = answer["partition"]

    status, printed = process.command("route", f"{schema}.orders", "--row", '{"id": 7, "city": "x"}')
    assert status == 1
    assert "leaves the row out" in printed
    status, printed = process.command("route", "elsewhere.orders")
    assert (status, "leave the table out" in printed) == (1, True)
    status, printed = process.command("route", f"{schema}.plain")
    assert (status, "rest" in printed) == (0, True)
    status, printed = process.command("route", f"{schema}.orders", "--row", '{"ID": 7, "usr": 1}')
    assert (status, "--row names usr" in printed) == (2, True)
    status, printed = process.command("route", f"{schema}.gone", "--row", '{"id": 1}', "--key", "id")
    assert (status, "those of --row" in printed) == (0, True)
    assert process.command("route", "orders")[0] == 2

    _, printed = process.command("check")
    for rule in (f"gone:{schema}\\.gone", f"{schema}\\.nowhere:$pk$", "never:9"):
        assert f"the rule {rule} decides about no table that there is now" in printed
    assert "the rule o:4" not in printed
    assert f"o:{schema}" not in printed

    process.start().wait_state("shop", "STREAMING")
    execute("INSERT INTO orders VALUES (7, 42, '北京'), (8, 42, '广州')")
    caught_up(process, 2)
    records = await read_topic(kafka.bootstrap_servers, "o", partition)
    assert [row["id"] for record in records for row in json.loads(record.value)["data"]] == ["7", "8"]


def test_check_names_a_rule_that_does_not_fit_a_table(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE orders (id INT PRIMARY KEY, city VARCHAR(9))")
    filters = "[[filter.where]]\ntables = '.*'\nrows = \"citi <> 'x'\"\n"
    text = destination_toml(mysql, schema, 'type = "null"').replace("[route]", f"{filters}[route]")
    status, printed = daemon(shop=text).command("check")
    assert status == 1
    assert f"does not fit the table {schema}.orders" in printed
    assert "city" in printed
    doubled = destination_toml(mysql, "x", 'type = "null"').replace(
        'include = "x\\\\..*"', f"include = '{schema}\\\\..*'"
    )
    status, printed = daemon(shop=doubled).command("check")
    assert "no table of the source is published now" in printed
    assert "a backslash is doubled" in printed
