"""A real Canal and a real Debezium that publish under load are replaced by import, shadow and adopt, and come back."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from kazoo.client import KazooClient

from devstack import Stack
from devstack.servers import canal, connect
from headrace.canal_wire.cursor import cursor_node
from headrace.cli.main import main
from tests.support import DaemonProcess, eventually, read_topic

pytestmark = [pytest.mark.server, pytest.mark.long]


class Writer:
    """Transactions in a thread, of an INSERT, an UPDATE of two rows and at times a DELETE: each row of each statement
    has a number in `n` that no other has."""

    def __init__(self, mysql: Any, schema: str) -> None:
        self._login = {**mysql.connection("root"), "database": schema}
        self._ended = threading.Event()
        self.number = 0
        self.written: list[tuple[str, int, int]] = []
        """What is committed, in order: the kind, the id, and its number."""
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        with pymysql.connect(**self._login, autocommit=False) as connection, connection.cursor() as cursor:
            while not self._ended.wait(0.002):
                done: list[tuple[str, int, int]] = []
                id_ = len(self.written) + 1
                for kind, which in (("INSERT", id_), ("UPDATE", id_), ("UPDATE", max(1, id_ - 40))):
                    self.number += 1
                    if kind == "INSERT":
                        cursor.execute("INSERT INTO t VALUES (%s, %s, 'é')", (which, self.number))
                        done.append((kind, which, self.number))
                    elif cursor.execute("UPDATE t SET n = %s WHERE id = %s", (self.number, which)):
                        done.append((kind, which, self.number))
                if self.number % 4 == 0 and cursor.execute("DELETE FROM t WHERE id = %s", (id_,)):
                    done.append(("DELETE", id_, done[1][2]))
                connection.commit()
                self.written += done

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


class OldCanal:
    """Canal into one topic, with its cursor in ZooKeeper."""

    gtids = "false"

    def __init__(self, request: pytest.FixtureRequest, mysql: Any, kafka: Any, schema: str) -> None:
        zookeeper, stack = request.getfixturevalue("zookeeper"), request.getfixturevalue("stack")
        self._cursor = ("--zookeeper", zookeeper.hosts)
        self._client = KazooClient(zookeeper.hosts)
        self._client.start()
        self.topic = schema
        settings = {
            "canal.serverMode": "kafka",
            "canal.mq.flatMessage": "true",
            "canal.zkServers": zookeeper.hosts,
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
        }
        more = {
            "canal.mq.topic": schema,
            "canal.mq.partition": "0",
            "canal.instance.filter.regex": rf"{schema}\..*",
            "canal.instance.filter.query.dml": "true",
            "canal.instance.gtidon": self.gtids,
        }
        self._server: canal.CanalServer = stack.canal({schema: {**canal.reads(mysql), **more}}, settings=settings)

    def has_cursor(self) -> bool:
        return self._client.exists(cursor_node(self.topic)) is not None

    def import_to(self, out: Path) -> list[str]:
        return ["import", "canal", str(self._server.home), *self._cursor, "--out", str(out)]

    def adopt(self) -> list[str]:
        return ["adopt", "canal", self.topic, *self._cursor]

    def export(self) -> list[str]:
        return ["export", "canal", self.topic, *self._cursor]

    def stop(self, *, crash: bool) -> None:
        (self._server.kill if crash else self._server.stop)()

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._server.kill()
        self._client.stop()
        self._client.close()

    def changes(self, value: Any) -> Iterator[tuple[str, int, int]]:
        for row in value.get("data") or ():
            yield value["type"], int(row["id"]), int(row["n"])


class OldCanalByGtids(OldCanal):
    """Its cursor has GTIDs, those of the transaction that it is in among them."""

    gtids = "true"


class OldDebezium:
    """A connector in Kafka Connect."""

    def __init__(self, request: pytest.FixtureRequest, mysql: Any, kafka: Any, schema: str) -> None:
        self._connect: connect.ConnectWorker = request.getfixturevalue("connect")
        self._name, self.topic = schema, f"{schema}.{schema}.t"
        self._config = connect.reads(mysql, schema, kafka.bootstrap_servers, user="canal")
        self._connect.configure(schema, self._config)
        self._connect.wait_streaming(schema)
        self._offsets = ("--offsets", f"{self._connect.group}-offsets", "--bootstrap", kafka.bootstrap_servers)

    def has_cursor(self) -> bool:
        return bool(self._connect.offsets(self._name))

    def import_to(self, out: Path) -> list[str]:
        file = out.parent / "connector.json"
        file.write_text(json.dumps({"name": self._name, "config": self._config}))
        return ["import", "debezium", str(file), *self._offsets, "--out", str(out)]

    def adopt(self) -> list[str]:
        return ["adopt", "debezium", self._name, *self._offsets]

    def export(self) -> list[str]:
        return ["export", "debezium", self._name, *self._offsets]

    def stop(self, *, crash: bool) -> None:
        self._crashed = crash
        if crash:
            self._connect.kill()
        else:
            self._connect.stop_connector(self._name)

    def start(self) -> None:
        if self._crashed:
            self._connect.start()
        else:
            self._connect.resume_connector(self._name)
        self._connect.wait_streaming(self._name)

    def close(self) -> None:
        self._connect.delete_connector(self._name)

    def changes(self, value: Any) -> Iterator[tuple[str, int, int]]:
        payload = value.get("payload", value)
        row = payload["after"] or payload["before"]
        yield {"c": "INSERT", "u": "UPDATE", "d": "DELETE"}[payload["op"]], row["id"], row["n"]


OLD: dict[str, type[OldCanal | OldDebezium]] = {
    "canal": OldCanal,
    "canal by GTIDs": OldCanalByGtids,
    "debezium": OldDebezium,
}


def configured(process: DaemonProcess, out: Path, name: str, prefix: str) -> None:
    """Gives the daemon the file that import has made, with [route] topic_prefix, and its secrets."""
    text = (out / "destinations" / f"{name}.toml").read_text()
    target = process.folder / "destinations" / f"{name}.toml"
    target.write_text(text.replace("\n[route]\n", f'\n[route]\ntopic_prefix = "{prefix}"\n'))
    shutil.copytree(out / "secrets", process.folder / "secrets", dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("kind", "crash", "mysql"),
    [
        ("canal", False, "mysql"),
        ("canal", True, "mysql"),
        ("canal by GTIDs", True, "mysql"),
        ("canal", True, "mysql56"),
        ("canal", True, "mariadb"),
        ("debezium", False, "mysql"),
        ("debezium", True, "mysql"),
        ("debezium", True, "mariadb"),
    ],
    indirect=["mysql"],
)
def test_a_system_that_is_replaced_and_comes_back_loses_and_repeats_no_change(
    kind: str,
    crash: bool,
    request: pytest.FixtureRequest,
    stack: Stack,
    mysql: Any,
    kafka: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, name VARCHAR(9) CHARACTER SET utf8mb4)")
    out, process = tmp_path / "made", daemon()

    def published() -> list[tuple[str, int, int]]:
        records = asyncio.run(read_topic(kafka.bootstrap_servers, old.topic))
        return [one for record in records if record.value for one in old.changes(json.loads(record.value))]

    old = OLD[kind](request, mysql, kafka, schema)
    writer = Writer(mysql, schema)
    try:
        eventually(lambda: len(published()) > 100, 60)
        eventually(old.has_cursor, 30)
        assert main(old.import_to(out)) == 0, capsys.readouterr().err
        assert "is on the source; it begins at" in capsys.readouterr().out
        configured(process, out, schema, "shadow.")
        process.start().wait_state(schema, "STREAMING", 60)
        done = process.run("shadow", schema, "--for", "3s", "--settle", "4s")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "nothing is unexplained" in done.stdout
        print(done.stdout)
        old.stop(crash=crash)
        assert process.terminate() == 0
        configured(process, out, schema, "")
        done = process.run(*old.adopt(), "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        adopted = len(published())
        process.start().wait_state(schema, "STREAMING", 60)
        eventually(lambda: len(published()) > adopted + 100, 60)
        assert process.terminate() == 0
        done = process.run(*old.export(), "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        returned = len(published())
        old.start()
        eventually(lambda: len(published()) > returned + 100, 60)
    finally:
        writer.end()
        process.kill()
    try:
        eventually(lambda: writer.written[-1] in published(), 60)
    finally:
        old.close()
    found = published()
    assert found[0] == writer.written[0]
    assert found == writer.written, first_difference(found, writer.written)


def first_difference(found: list[tuple[str, int, int]], written: list[tuple[str, int, int]]) -> str:
    for number, (one, other) in enumerate(zip(found, written, strict=False)):
        if one != other:
            return f"at {number}: {found[number - 3 : number + 3]}, written {written[number - 3 : number + 3]}"
    return f"{len(found)} and {len(written)}"
