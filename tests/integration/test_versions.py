"""Further versions of the servers, each once: MySQL 5.6, MariaDB 11.8 and RabbitMQ 4. The matrix runs more on them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_rabbitmq_daemon import read_all, section
from tests.rabbit import connected_to
from tests.site import Site, equal
from tests.support import DaemonProcess, destination_toml, read_jsonl, replay

pytestmark = pytest.mark.server

TABLE = """CREATE TABLE t (
    id INT UNSIGNED PRIMARY KEY, price DECIMAL(10,2), at DATETIME(3) NULL, ts TIMESTAMP(6) NULL, ti TIME(2),
    e ENUM('小','中','大'), name VARCHAR(40)) DEFAULT CHARSET utf8mb4"""
VALUES = "-12.50, '2026-11-21 23:59:59.987', '2026-11-21 03:04:05.000001', '-838:59:58.25', '中', '家庭保洁服务'"


def change(run: Callable[..., Any], first: int) -> None:
    """Some of everything from that id on, and a column that comes and goes."""
    keys = range(first, first + 5)
    run(*(f"INSERT INTO t (id, price, at, ts, ti, e, name) VALUES ({key}, {VALUES})" for key in keys))
    run(f"UPDATE t SET price = price * 2, e = '大', name = CONCAT(name, '新') WHERE id >= {first + 2}")
    run("ALTER TABLE t ADD COLUMN later VARCHAR(20) CHARACTER SET gbk AFTER id", "UPDATE t SET later = '广州'")
    run(f"DELETE FROM t WHERE id = {first}", f"UPDATE t SET id = {first + 9} WHERE id = {first + 4}")
    run("ALTER TABLE t DROP COLUMN later", "UPDATE t SET price = price + 1")


@pytest.mark.parametrize("site", ["mysql56", "mariadb118"], indirect=True)
def test_changes_of_rows_and_columns_come_through_kills(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    site.run(TABLE)
    process = start(site)
    change(site.run, 10)
    process.wait("shop", lambda status: status["rows"] >= 15)
    for first in (20, 30):
        process.kill()
        change(site.run, first)
        process.start()
        process.wait_state("shop", "STREAMING")
        change(site.run, first + 100)
    equal(site, out)
    assert {message["type"] for message in read_jsonl(out)} == {"INSERT", "UPDATE", "DELETE"}
    assert all(message["gtid"] for message in read_jsonl(out))
    assert process.terminate() == 0


def test_check_advises_nothing_that_mysql_5_6_does_not_know(mysql56: Any, daemon: Callable[..., DaemonProcess]) -> None:
    process = daemon(shop=destination_toml(mysql56, "shop", 'type = "null"'))
    mysql56.sql("SET GLOBAL binlog_format = 'MIXED'; SET GLOBAL binlog_row_image = 'MINIMAL'")
    status, text = process.command("check")
    remedies = re.findall(r"-> (SET .*?;)", text)
    assert (status, len(remedies)) == (1, 2), text
    mysql56.sql("".join(remedies))
    status, text = process.command("check")
    assert status == 0, text
    assert "binlog_row_metadata is not known to this version" in text
    assert "SET " not in text


def test_mysql_5_6_is_not_asked_for_its_replicas_which_can_crash_it(
    mysql56: Any, daemon: Callable[..., DaemonProcess]
) -> None:
    mysql56.sql("SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = ON")
    try:
        process = daemon(shop=destination_toml(mysql56, "shop", 'type = "null"')).start()
        process.wait_state("shop", "STREAMING")
        assert "is not checked: that can crash MySQL 5.6" in process.command("check")[1]
        assert process.terminate() == 0
    finally:
        mysql56.sql("SET GLOBAL general_log = OFF; SET GLOBAL log_output = 'FILE'")
    asked = [row[0] for row in mysql56.sql("SELECT CONVERT(argument USING utf8) FROM mysql.general_log")]
    assert any("@slave_uuid" in text for text in asked), asked
    assert not [text for text in asked if "SLAVE HOSTS" in text or "REPLICAS" in text]


async def test_confirmed_messages_outlive_kills_of_the_daemon_and_of_rabbitmq_4(
    rabbitmq4: Any, mysql_site: Site, daemon: Callable[..., DaemonProcess]
) -> None:
    site, name = mysql_site, mysql_site.schema
    site.run(TABLE)
    sink = section(rabbitmq4, declare="true", exchange=f'"{name}"', queue=f'"{name}"', queue_type='"quorum"')
    process = daemon(shop=destination_toml(site.server, name, sink)).start()
    process.wait_state("shop", "STREAMING")
    change(site.run, 10)
    process.wait("shop", lambda status: status["rows"] >= 15 and not status["oldest_unconfirmed_seconds"])
    rabbitmq4.sync()
    process.kill()
    rabbitmq4.kill()
    change(site.run, 20)
    rabbitmq4.start()
    process.start()
    change(site.run, 30)
    site.run("INSERT INTO t (id, name) VALUES (1, 'the last')")
    async with connected_to(rabbitmq4.url) as broker:
        messages = await read_all(broker, name)
    assert replay(messages) == site.table()
    assert process.terminate() == 0
