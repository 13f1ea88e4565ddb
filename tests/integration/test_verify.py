"""`headrace verify` on real servers: what it finds, what it does not invent, and how what it offers mends the rest."""

from __future__ import annotations

import json
import shlex
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server
QUICK = ("--settle", "300ms")


def verify(process: DaemonProcess, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and what was found of table t."""
    done = process.run("verify", "shop", "--json", *QUICK, *words)
    assert done.stdout, done.stderr
    (table,) = json.loads(done.stdout)["tables"]
    return done.returncode, table


def fill(site: Site, rows: int = 100) -> None:
    """Rows with ids 1, 2, 3 ... of many types."""
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40), price DECIMAL(10,2), at TIMESTAMP(3) NULL, f DOUBLE, "
        "kind ENUM('a','b'), raw VARBINARY(9), doc JSON) CHARACTER SET utf8mb4"
    )
    values = ",".join(
        f"({n}, '行 {n}', {n}.5, '2026-01-31 12:00:00.125', {n} / 3, 'b', x'00ff', '{{\"a\": [{n}, 1.5]}}')"
        for n in range(1, rows + 1)
    )
    site.run(f"INSERT INTO t VALUES {values}")


def unlogged(site: Site, *statements: str) -> None:
    """Changes of which no message will come."""
    site.session()("SET sql_log_bin = 0", *statements)


def caught_up(out: Path, rows: int) -> None:
    eventually(lambda: sum(len(one["data"]) for one in read_jsonl(out)) >= rows)


def run_offered(process: DaemonProcess, command: str) -> None:
    """Runs a command as it was printed for a shell, and waits until the daemon has done it."""
    words = shlex.split(command)
    assert words[:3] == ["headrace", "resync", "shop"]
    assert process.run(*words[1:]).returncode == 0
    process.wait("shop", lambda status: status["state"] == "STREAMING" and status["snapshot"] is None)


@pytest.fixture
def chosen_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(request.getfixturevalue(request.param), f"ev{abs(hash(tmp_path)) % 10**9}")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("chosen_site", "format"),
    [("mysql", "canal"), pytest.param("mariadb", "debezium", marks=pytest.mark.long)],
    indirect=["chosen_site"],
)
def test_a_file_equals_its_table_and_what_is_lost_changed_or_extra_is_found_and_mended(
    chosen_site: Site, start: Callable[..., DaemonProcess], out: Path, format: str, tmp_path: Path
) -> None:
    site = chosen_site
    process = start(site, more=f'[message]\nformat = "{format}"\nrows_per_message = 1')
    fill(site)
    site.run(
        "UPDATE t SET name = 'again' WHERE id <= 10",
        "DELETE FROM t WHERE id = 11",
        "UPDATE t SET id = 500 WHERE id = 12",
    )
    eventually(lambda: b'"500"' in (text := out.read_bytes()) or b'"id":500' in text)

    status, table = verify(process)
    assert (status, table["equal"], table["source_rows"], table["consumer_rows"]) == (0, True, 99, 99)

    unlogged(
        site, "UPDATE t SET price = 1 WHERE id = 20", "DELETE FROM t WHERE id = 30", "INSERT INTO t (id) VALUES (40000)"
    )
    extra = tmp_path / "extra"
    status, table = verify(process, "--range-rows", "10", "--extra", str(extra))
    assert status == 1
    assert (table["missing"], table["different"], table["extra"]) == (1, 1, 1)
    assert [one["keys"] for one in table["ranges"]] == [["20"], ["40000"]]
    assert table["extra_keys"] == ["30"]
    assert extra.read_text() == f"{site.schema}.t\t30\n"

    for one in table["ranges"]:
        run_offered(process, one["command"])
    site.run("INSERT INTO t (id) VALUES (30)", "DELETE FROM t WHERE id = 30")
    eventually(lambda: verify(process)[0] == 0)


def test_a_message_that_was_lost_is_found_and_its_rows_come_again(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(mysql_site, more="[message]\nrows_per_message = 10")
    fill(mysql_site)
    caught_up(out, 100)
    assert process.terminate() == 0
    lines = out.read_bytes().splitlines(keepends=True)
    (lost,) = (line for line in lines if b'"id":"41"' in line)
    out.write_bytes(b"".join(line for line in lines if line != lost))
    process.start().wait_state("shop", "STREAMING")

    status, table = verify(process)
    assert (status, table["missing"], table["different"], table["extra"]) == (1, 10, 0, 0)
    (found,) = table["ranges"]
    assert found["where"] == "`id` BETWEEN 41 AND 50"
    text = process.run("verify", "shop", f"{mysql_site.schema}.t", *QUICK).stdout
    assert found["command"] in text
    run_offered(process, found["command"])
    eventually(lambda: verify(process)[0] == 0)


class Writer:
    """A session that inserts, updates, deletes and changes keys until it is stopped."""

    def __init__(self, site: Site) -> None:
        self._stop, self._failed = threading.Event(), list[BaseException]()
        self._run = site.session()
        self.done = 0
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                key = self.done % 300 + 1
                self._run(
                    f"INSERT INTO t (id) VALUES ({key}) ON DUPLICATE KEY UPDATE name = 'again {self.done}'",
                    f"UPDATE t SET price = {self.done} WHERE id IN (1, {key}, {key + 7})",
                    f"DELETE FROM t WHERE id = {key + 3}",
                    f"UPDATE IGNORE t SET id = {key + 1000} WHERE id = {key + 5}",
                    f"UPDATE IGNORE t SET id = {key} WHERE id = {key + 1000}",
                )
                self.done += 1
        except BaseException as error:
            self._failed.append(error)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._failed, self._failed


@pytest.fixture
def writer(mysql_site: Site) -> Iterator[Callable[[], Writer]]:
    made: list[Writer] = []

    def go() -> Writer:
        made.append(Writer(mysql_site))
        return made[-1]

    yield go
    for one in made:
        one.stop()


@pytest.mark.parametrize("format", ["canal", "debezium"])
def test_a_topic_of_several_partitions_equals_its_table_while_others_write(
    mysql_site: Site, kafka: Any, daemon: Callable[..., DaemonProcess], writer: Callable[[], Writer], format: str
) -> None:
    site, topic = mysql_site, f"verify-{uuid.uuid4().hex[:8]}"
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\ncreate_topics = true'
    text = destination_toml(site.server, site.schema, sink, more=f'[message]\nformat = "{format}"')
    spread = f'[route]\ntopic = "{topic}"\npartitions = 3\npartition_hash = ".*\\\\..*:$pk$"'
    process = daemon(shop=text.replace(f'[route]\ntopic = "{site.schema}"', spread)).start()
    process.wait_state("shop", "STREAMING")
    fill(site)
    work = writer()
    eventually(lambda: work.done > 20)
    status, table = verify(process)
    assert status == 0, table
    work.stop()

    unlogged(site, "UPDATE t SET name = 'unseen' WHERE id = 1")
    status, table = verify(process)
    assert (status, table["missing"], table["different"], table["extra"]) == (1, 0, 1, 0)
    run_offered(process, table["ranges"][0]["command"])
    eventually(lambda: verify(process)[0] == 0)


def test_a_table_that_never_had_a_row_has_no_topic_and_the_others_are_compared(
    mysql_site: Site, kafka: Any, daemon: Callable[..., DaemonProcess]
) -> None:
    site, topic = mysql_site, f"verify-{uuid.uuid4().hex[:8]}"
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\ncreate_topics = true'
    text = destination_toml(site.server, site.schema, sink)
    each = f"topic = 'rest'\ndynamic_topic = '{topic}-{{table}}:{site.schema}\\..*'"
    process = daemon(shop=text.replace(f'topic = "{site.schema}"', each))
    for table in ("blank", "full", "unseen"):  # before the start: a statement is a message too
        site.run(f"CREATE TABLE {table} (id INT PRIMARY KEY)")
    process.start().wait_state("shop", "STREAMING")
    unlogged(site, "INSERT INTO unseen VALUES (1)")
    site.run("INSERT INTO full VALUES (1), (2)")
    process.wait("shop", lambda status: status["rows"] == 2)
    done = process.run("verify", "shop", "--json", *QUICK)
    blank, full, unseen = json.loads(done.stdout)["tables"]
    assert (done.returncode, blank["equal"], full["equal"], unseen["missing"]) == (1, True, True, 1)
    assert blank["notes"][0].startswith(f"there is no topic {topic}-blank: nothing of the table was published yet")
    assert full["notes"] == []


def test_rows_and_columns_are_compared_as_they_are_published_and_a_masked_key_is_shown_nowhere(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    site = mysql_site
    filters = (
        '[filter]\n[[filter.where]]\ntables = ".*\\\\.t"\nrows = "city = \'bj\'"\n'
        '[[filter.mask]]\ntables = ".*\\\\.t"\ncolumns = "phone"\nmask = "hash"\nsalt = "salt"'
    )
    process = start(site, filters.replace("[filter]\n", ""))
    site.run("CREATE TABLE t (phone VARCHAR(20) PRIMARY KEY, city VARCHAR(9), n INT) CHARACTER SET utf8mb4")
    site.run("INSERT INTO t VALUES ('555-1', 'bj', 1), ('555-2', 'sh', 2), ('555-3', 'bj', 3)")
    caught_up(out, 2)
    status, table = verify(process)
    assert (status, table["source_rows"], table["consumer_rows"]) == (0, 2, 2)

    unlogged(site, "UPDATE t SET n = 7 WHERE phone = '555-1'")
    done = process.run("verify", "shop", *QUICK)
    assert done.returncode == 1
    assert "1 different" in done.stdout
    assert "555-" not in done.stdout
    assert f"headrace resync shop {site.schema}.t\n" in done.stdout


KEYS = {
    "word": ("VARCHAR(20) COLLATE utf8mb4_general_ci", "'Straße', 'b\\\\''c', '名', 'a '"),
    "latin": ("VARCHAR(20) CHARACTER SET latin1", "'é', 'f', 'ö'"),
    "raw": ("VARBINARY(9)", "x'00ff', x'', x'41'"),
    "money": ("DECIMAL(20,4)", "-1.5, 0, 12345678901234.5678"),
    "moment": ("DATETIME(6)", "'2026-01-31 12:00:00.000001', '1000-01-01 00:00:00', '9999-12-31 00:00:00'"),
    "stamp": ("TIMESTAMP(3)", "'2026-01-31 12:00:00.001', '2026-07-31 12:00:00'"),
    "kind": ("ENUM('z','y','x')", "'x', 'y', 'z'"),
    "real_": ("DOUBLE", "0.1, -1e300, 3"),
    "small": ("FLOAT", "0.1, 1e-3, 16777216"),
    "bits": ("BIT(12)", "b'1', b'101', b'111111111111'"),
    "huge": ("BIGINT UNSIGNED", "18446744073709551615, 0, 9223372036854775808"),
    "span": ("TIME(2)", "'-12:00:00.01', '838:59:59', '00:00:00'"),
}
"""By table: the type of its key, and the keys of its rows."""


@pytest.mark.parametrize(
    ("chosen_site", "format", "key"),
    [("mysql", "debezium", "k"), ("mariadb", "canal", "part, k")],
    indirect=["chosen_site"],
)
@pytest.mark.long
def test_a_row_is_found_again_by_a_key_of_any_type(
    chosen_site: Site, start: Callable[..., DaemonProcess], format: str, key: str
) -> None:
    site = chosen_site
    process = start(site, more=f'[message]\nformat = "{format}"')
    for table, (kind, keys) in KEYS.items():
        rows = ",".join(f"({key}, {n % 2}, 1)" for n, key in enumerate(keys.split(", ")))
        site.run(
            f"CREATE TABLE {table} (k {kind} NOT NULL, part INT, n INT, PRIMARY KEY ({key})) CHARACTER SET utf8mb4",
            f"INSERT INTO {table} VALUES {rows}",
        )
    site.run("CREATE TABLE last (id INT PRIMARY KEY)", "INSERT INTO last VALUES (1)")
    eventually(lambda: process.run("verify", "shop", f"{site.schema}.last", *QUICK).returncode == 0)
    unlogged(site, *(f"UPDATE {table} SET n = 2" for table in KEYS))
    site.run("SET time_zone = '+00:00'")
    names = ",".join(f"{site.schema}.{table}" for table in KEYS)
    done = process.run("verify", "shop", names, "--json", "--settle", "20ms")
    found = json.loads(done.stdout)["tables"]
    assert len(found) == len(KEYS)
    for one in found:
        name = one["table"].partition(".")[2]
        count = len(KEYS[name][1].split(", "))
        assert (one["missing"], one["different"], one["extra"]) == (0, count, 0), one
        where = one["ranges"][0]["where"]
        assert site.run(f"SELECT COUNT(*) FROM {name} WHERE {where}")[0][0] == count, where


def test_files_that_were_rotated_are_read_too(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    site = mysql_site
    sink = f'type = "jsonl"\npath = "{out}"\nrotate_bytes = "4KiB"'
    process = daemon(shop=destination_toml(site.server, site.schema, sink)).start()
    process.wait_state("shop", "STREAMING")
    site.run("CREATE TABLE t (a INT, b VARCHAR(20), PRIMARY KEY (b, a)) CHARACTER SET utf8mb4")
    for n in range(30):
        site.run(f"INSERT INTO t VALUES ({n}, 'x{n % 3}')")
    eventually(lambda: verify(process)[0] == 0)
    assert len(list(out.parent.glob("out-*.jsonl"))) > 1
    unlogged(site, "UPDATE t SET a = a + 100 WHERE a < 2")
    status, table = verify(process)
    assert (status, table["missing"], table["extra"]) == (1, 2, 2)
    run_offered(process, table["ranges"][0]["command"])
    assert verify(process)[1]["missing"] == 0


def test_a_command_that_can_not_be_done_says_why_with_exit_status_2(
    mysql_site: Site, start: Callable[..., DaemonProcess]
) -> None:
    process = start(mysql_site, more='[message]\nformat = "debezium"')
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    for words, why in (
        (("nowhere.t",), "captures no table"),
        (("--index", "http://localhost:9200"), "Canal's messages"),
    ):
        done = process.run("verify", "shop", *words)
        assert (done.returncode, why in done.stderr) == (2, True), done.stderr
