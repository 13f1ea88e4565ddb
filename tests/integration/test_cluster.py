"""Several daemons as processes that share destinations by a lock service: one runs each, another takes over."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster.watchdog import EXIT_STATUS
from tests.lock_bench import ADDRESSES, SERVICES
from tests.proxy import Proxy
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, read_topic, replay

pytestmark = pytest.mark.server

Make = Callable[..., DaemonProcess]
SESSION = 4.0
BOTH = pytest.mark.parametrize("service", ["zookeeper", "etcd"], indirect=True)


@dataclass(frozen=True)
class Service:
    """A lock service, by the name of its section."""

    kind: str
    server: Any

    def shared(self, root: str, more: str = "", address: str = "") -> str:
        """The settings of one daemon of a cluster."""
        where = f'{ADDRESSES[self.kind]} = "{address or self.server.address}"'
        return f'{more}\n[{self.kind}]\n{where}\nroot = "/{root}"\nsession_timeout = "{SESSION}s"'


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Service:
    return Service(request.param, request.getfixturevalue(request.param))


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def roles(*daemons: DaemonProcess, name: str = "shop") -> list[str]:
    return [one.health()[1].get("destinations", {}).get(name, {}).get("role", "") for one in daemons]


def active(*daemons: DaemonProcess, name: str = "shop") -> DaemonProcess:
    """The one that runs the destination, once there is exactly one whose changes flow."""

    def flows() -> bool:
        return sum(one.ready(name) == 200 for one in daemons) == 1

    logs = lambda: "\n".join(one.log.read_text()[-3000:] for one in daemons)  # noqa: E731
    eventually(flows, 40, lambda: f"{roles(*daemons, name=name)}\n{logs()}")
    return next(one for one in daemons if one.ready(name) == 200)


@pytest.fixture
def pair(
    mysql: Any, service: Service, schema: str, daemon: Make, tmp_path: Path
) -> tuple[DaemonProcess, DaemonProcess]:
    """Two daemons that share the destination `shop`, which goes to out.jsonl; the first one runs it."""
    text = destination_toml(mysql, schema, jsonl(tmp_path / "out.jsonl"))
    settings = service.shared(schema)
    one = daemon(shop=text, settings=settings, node="one").start()
    one.wait_state("shop", "STREAMING")
    two = daemon(shop=text, settings=settings, node="two").start()
    two.wait("shop", lambda s: s["state"] == "STANDBY" and s["holder"].startswith("one"))
    return one, two


def ids(path: Path) -> list[str]:
    return [row["id"] for message in read_jsonl(path) for row in message["data"]]


def test_a_standby_is_healthy_and_not_ready_and_takes_over_after_a_clean_stop(
    service: Service, pair: tuple[DaemonProcess, DaemonProcess], execute: Callable[..., Any], tmp_path: Path
) -> None:
    one, two = pair
    code, health = two.health()
    assert (code, health["destinations"]["shop"]["role"]) == (200, "STANDBY")
    assert (one.ready("shop"), two.ready("shop"), two.ready("nothing")) == (200, 503, 404)
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: ids(tmp_path / "out.jsonl") == ["1"])
    epoch = one.health()[1]["destinations"]["shop"]["epoch"]
    assert one.terminate() == 0
    seen = two.wait_state("shop", "STREAMING")
    assert (seen["role"], seen["takeovers"], two.ready("shop")) == ("ACTIVE", 1, 200)
    assert seen["epoch"] > epoch
    execute("INSERT INTO t VALUES (2)")
    eventually(lambda: len(ids(tmp_path / "out.jsonl")) == 2)
    assert ids(tmp_path / "out.jsonl") == ["1", "2"], "a clean stop leaves nothing to send twice"
    with urllib.request.urlopen(f"http://127.0.0.1:{two.port}/metrics", timeout=5) as answer:
        metrics = answer.read().decode().splitlines()
    assert f"headrace_{service.kind}_sessions_total 1.0" in metrics
    assert 'headrace_fenced_writes_total{destination="shop"} 0.0' in metrics


@pytest.mark.long
def test_a_killed_daemon_is_replaced_once_its_session_has_ended(
    pair: tuple[DaemonProcess, DaemonProcess], execute: Callable[..., Any], tmp_path: Path
) -> None:
    one, two = pair
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: ids(tmp_path / "out.jsonl") == ["1"])
    one.kill()
    two.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (2)")
    eventually(lambda: set(ids(tmp_path / "out.jsonl")) == {"1", "2"})
    one.start()
    one.wait("shop", lambda s: s["state"] == "STANDBY" and s["holder"].startswith("two"))


def test_a_daemon_cut_off_from_the_lock_service_stops_before_the_other_begins_and_is_a_standby_afterwards(
    mysql: Any, kafka: Any, service: Service, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    node = service.server.nodes[0]
    text = destination_toml(mysql, schema, f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"')
    execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, n INT)")
    stop, count = threading.Event(), 0

    def write() -> None:
        nonlocal count
        while not stop.wait(0.01):
            execute("INSERT INTO t (n) VALUES (1)")
            count += 1

    with Proxy(node.host, node.port) as proxy:
        one = daemon(shop=text, settings=service.shared(schema, address=f"127.0.0.1:{proxy.port}"), node="one").start()
        one.wait_state("shop", "STREAMING")
        two = daemon(shop=text, settings=service.shared(schema), node="two").start()
        two.wait_state("shop", "STANDBY")
        writer = threading.Thread(target=write)
        writer.start()
        try:
            proxy.freeze()
            suspended = one.wait("shop", lambda s: s["state"] != "STREAMING")
            assert (suspended["state"], suspended["reason"], one.ready("shop")) == ("STALLED", "lock", 503)
            two.wait_state("shop", "STREAMING")
            proxy.thaw()
            one.wait("shop", lambda s: s["state"] == "STANDBY" and s["holder"].startswith("two"))
            rows = two.health()[1]["destinations"]["shop"]["rows"]
            two.wait("shop", lambda s: s["rows"] > rows + 50)
        finally:
            stop.set()
            writer.join()
        total = execute("SELECT COUNT(*) FROM t")[0][0]
        eventually(lambda: len(replay(topic(kafka, schema))) == total)
    assert_epochs_in_order(kafka, schema)


def topic(kafka: Any, name: str) -> list[dict[str, Any]]:
    return [json.loads(record.value) for record in asyncio.run(read_topic(kafka.bootstrap_servers, name))]


def assert_epochs_in_order(kafka: Any, name: str) -> None:
    """No message of an earlier holder stands behind one of a later."""
    records = asyncio.run(read_topic(kafka.bootstrap_servers, name))
    epochs = [int(dict(record.headers)["headrace-epoch"]) for record in records]
    assert len(set(epochs)) > 1
    assert epochs == sorted(epochs)


def test_a_short_cut_is_survived_in_place_by_the_same_daemon(
    mysql: Any, kafka: Any, service: Service, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    node = service.server.nodes[0]
    text = destination_toml(mysql, schema, f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"')
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    with Proxy(node.host, node.port) as proxy:
        one = daemon(shop=text, settings=service.shared(schema, address=f"127.0.0.1:{proxy.port}"), node="one").start()
        before = one.wait_state("shop", "STREAMING")
        proxy.freeze()
        one.wait("shop", lambda s: s["reason"] == "lock")
        execute("INSERT INTO t VALUES (1)")  # read meanwhile, and sent afterwards
        proxy.thaw()
        after = one.wait("shop", lambda s: s["state"] == "STREAMING" and s["rows"] == 1)
    assert (after["lease_resumes"], after["restarts"], after["epoch"]) == (1, 0, before["epoch"])


@BOTH
def test_a_frozen_daemon_is_replaced_and_sends_nothing_when_it_wakes(
    mysql: Any, kafka: Any, service: Service, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    text = destination_toml(mysql, schema, f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"')
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    settings = service.shared(schema)
    one = daemon(shop=text, settings=settings, node="one").start()
    one.wait_state("shop", "STREAMING")
    two = daemon(shop=text, settings=settings, node="two").start()
    two.wait_state("shop", "STANDBY")
    execute("INSERT INTO t VALUES (1)")
    one.wait("shop", lambda s: s["rows"] == 1)
    os.kill(one.pid, signal.SIGSTOP)
    try:
        two.wait_state("shop", "STREAMING")
        execute("INSERT INTO t VALUES (2)")
        two.wait("shop", lambda s: s["rows"] >= 1)
    finally:
        os.kill(one.pid, signal.SIGCONT)
    one.wait("shop", lambda s: s["state"] == "STANDBY" and s["holder"].startswith("two"))
    execute("INSERT INTO t VALUES (3)")
    eventually(lambda: len(replay(topic(kafka, schema))) == 3)
    assert_epochs_in_order(kafka, schema)


def test_a_daemon_whose_loop_hangs_ends_by_itself_and_another_one_goes_on(
    pair: tuple[DaemonProcess, DaemonProcess], execute: Callable[..., Any], tmp_path: Path
) -> None:
    one, two = pair
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: ids(tmp_path / "out.jsonl") == ["1"])
    one.hang()
    execute("INSERT INTO t VALUES (2)")
    assert one.wait_end(SESSION + 10) == EXIT_STATUS
    log = one.log.read_text()
    assert "headrace: the event loop hangs (outside of any destination's binlog), and a lapsed lease" in log
    assert "most recent call first" in log, "what it does"
    two.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (3)")
    eventually(lambda: "3" in ids(tmp_path / "out.jsonl"))
    assert ids(tmp_path / "out.jsonl").count("2") == 1, "only the second one sent it"


@pytest.mark.long
def test_an_event_on_which_daemons_hang_ends_two_of_them_and_then_stops_its_destination_alone(
    mysql: Any,
    service: Service,
    schema: str,
    execute: Callable[..., Any],
    daemon: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_HANGS_ON", "hang")
    execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))", "CREATE TABLE u (id INT PRIMARY KEY)")
    text = destination_toml(mysql, schema, jsonl(tmp_path / "out.jsonl"))
    other = destination_toml(mysql, schema, jsonl(tmp_path / "other.jsonl"), more='[filter]\ninclude = ".*\\\\.u"')
    other = other.replace(f'[filter]\ninclude = "{schema}\\\\..*"\n', "")
    settings = service.shared(schema, 'native = "off"')
    one, two, three = (daemon(shop=text, other=other, settings=settings, node=name) for name in ("one", "two", "three"))
    one.start().wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (1, 'one')")
    eventually(lambda: ids(tmp_path / "out.jsonl") == ["1"])
    execute("INSERT INTO t VALUES (2, 'hang')", "INSERT INTO t VALUES (3, 'three')", "INSERT INTO u VALUES (1)")
    assert one.wait_end(SESSION + 20) == EXIT_STATUS
    found = re.search(r"the event loop hangs \(destination shop, ([^:]+:\d+)\)", one.log.read_text())
    assert found is not None
    assert two.start().wait_end(SESSION + 30) == EXIT_STATUS
    assert "a daemon hung while it read an event, and was ended" in two.log.read_text()
    failed = three.start().wait_state("shop", "FAILED", 40)
    assert failed["last_error"].startswith(f"at {found[1]}: the event loop of 2 daemons hung")
    assert f"skip_event = ['{found[1]}']" in failed["last_error"]
    three.wait_state("other", "STREAMING")
    eventually(lambda: "1" in ids(tmp_path / "other.jsonl"))  # perhaps twice: daemons were ended before they stored it
    (three.folder / "destinations/shop.toml").write_text(
        text.replace("[source]", f"[source]\nskip_event = ['{found[1]}']")
    )
    three.wait_state("shop", "STREAMING", 40)
    eventually(lambda: "3" in ids(tmp_path / "out.jsonl"))
    assert "2" not in ids(tmp_path / "out.jsonl"), "an operator has said so"


def test_destinations_spread_over_the_daemons_and_an_operator_moves_and_drains(
    mysql: Any, service: Service, schema: str, daemon: Make, tmp_path: Path
) -> None:
    names = ["d1", "d2"]
    texts = {name: destination_toml(mysql, schema, jsonl(tmp_path / f"{name}.jsonl")) for name in names}
    settings = service.shared(schema)
    one = daemon(settings=settings, node="one", **texts).start()
    for name in names:
        one.wait_state(name, "STREAMING")
    two = daemon(settings=settings, node="two", **texts).start()

    def held(node: DaemonProcess) -> list[str]:
        states = node.health()[1].get("destinations", {})
        return [name for name, one in states.items() if one["role"] == "ACTIVE" and one["state"] == "STREAMING"]

    eventually(lambda: (len(held(one)), len(held(two))) == (1, 1), 60, lambda: f"{held(one)} {held(two)}")
    assert sorted(held(one) + held(two)) == names

    name = held(one)[0]
    code, said = one.command("move", name, "two")
    assert (code, said.split(",")[0]) == (0, f"{name}: run by two")
    two.wait_state(name, "STREAMING")
    code, said = one.command("move", name, "nobody")
    assert code == 1
    assert "no daemon nobody is alive; there are one, two" in said

    code, said = one.command("drain", "two")
    assert (code, said) == (0, "two: runs nothing, and stays so until headrace drain two --undo\n")
    eventually(lambda: held(one) == names)
    code, said = one.command("move", name, "two")
    assert code == 1
    assert "two is drained -> headrace drain two --undo" in said
    facts = json.loads(one.command("cluster", "--json")[1])
    assert {node: (info["running"], info["drained"]) for node, info in facts["nodes"].items()} == {
        "one": (2, False),
        "two": (0, True),
    }
    code, said = one.command("drain", "one")
    assert code == 1
    assert "nobody else could run d1, d2; it keeps them until somebody can" in said
    assert two.command("drain", "two", "--undo")[0] == 0
    eventually(lambda: held(two) == names, 60)
    assert one.command("drain", "one", "--undo")[0] == 0
    assert "two" in one.command("cluster")[1]


@pytest.mark.long
def test_a_daemon_runs_no_more_than_it_may(
    mysql: Any, service: Service, schema: str, daemon: Make, tmp_path: Path
) -> None:
    texts = {name: destination_toml(mysql, schema, jsonl(tmp_path / f"{name}.jsonl")) for name in ("d1", "d2", "d3")}
    settings = service.shared(schema, "max_destinations = 2")
    one = daemon(settings=settings, node="one", **texts).start()
    eventually(lambda: sorted(roles(one, name=n)[0] for n in texts) == ["ACTIVE", "ACTIVE", "STANDBY"])
    two = daemon(settings=settings, node="two", **texts).start()
    eventually(lambda: all("ACTIVE" in roles(one, two, name=n) for n in texts))


def test_shared_positions_are_shown_and_set_by_the_same_commands(
    pair: tuple[DaemonProcess, DaemonProcess], execute: Callable[..., Any], tmp_path: Path
) -> None:
    one, two = pair
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: ids(tmp_path / "out.jsonl") == ["1"])
    assignment = one.wait("shop", lambda s: s["rows"] == 1 and s["last_checkpoint_seconds"] is not None)["position"]
    code, said = two.command("position", "show", "shop", "--json")
    assert code == 0, said
    assert json.loads(said)["shop"]["stored"]["file"] == assignment["file"]
    code, said = two.command("position", "set", "shop", "earliest", "--yes")
    assert code == 1
    assert "shop is run by one" in said
    for process in (one, two):
        assert process.terminate() == 0
    code, said = one.command("position", "set", "shop", f"{assignment['file']}:4", "--yes")
    assert code == 0, said
    code, said = two.command("position", "history", "shop")
    assert "operator" in said
    assert one.command("check")[0] in (0, 1)
    two.start()
    two.wait("shop", lambda s: s["state"] == "STREAMING" and s["rows"] >= 1)
    eventually(lambda: ids(tmp_path / "out.jsonl").count("1") == 2)


@pytest.mark.parametrize("service", ["zookeeper"], indirect=True)
def test_check_reports_an_account_that_may_not_use_the_nodes(
    mysql: Any, service: Service, schema: str, daemon: Make
) -> None:
    text = destination_toml(mysql, schema, 'type = "null"')
    settings = service.shared(schema)
    account = '\nuser = "headrace"\npassword = "secret"'
    one, other = (daemon(shop=text, settings=settings + more) for more in (account, account.replace("secret", "else")))
    code, said = one.command("check")
    assert (code, said.splitlines()[-1]) == (0, "all is well"), said
    one.start().wait_state("shop", "STREAMING")
    assert one.terminate() == 0
    code, said = other.command("check")
    assert code == 1
    assert said.count("wrong ") == said.count("state: wrong   store: ZooKeeper does not let us use") == 1, said
    assert "give [zookeeper] the user that made the nodes" in said
    assert "shop: warning position: not checked, because the state store can't be read" in said
    away = daemon(shop=text, settings=service.shared(schema, address="127.0.0.1:1"))
    code, said = away.command("check")
    assert (code, said.count("could be reached within")) == (1, 1), said


@pytest.mark.long
def test_a_lock_service_that_is_away_is_one_sentence(
    mysql: Any, service: Service, schema: str, daemon: Make, tmp_path: Path
) -> None:
    text = destination_toml(mysql, schema, jsonl(tmp_path / "out.jsonl"))
    process = daemon(shop=text, settings=service.shared(schema, address="127.0.0.1:1"))
    began = time.monotonic()
    code, said = process.command("run")
    assert code == 1
    assert time.monotonic() - began < 30
    assert re.search(r"no (ZooKeeper|etcd) of 127\.0\.0\.1:1 could be reached within", said)
    assert "Traceback" not in said


@pytest.fixture
def once(mysql: Any, kafka: Any, service: Service, schema: str, daemon: Make) -> list[DaemonProcess]:
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\ndelivery = "exactly_once"'
    text = destination_toml(mysql, schema, sink)
    settings = service.shared(schema)
    return [daemon(shop=text, settings=settings, node=node).start() for node in ("one", "two")]


def test_exactly_once_goes_from_daemon_to_daemon_without_a_duplicate(
    once: list[DaemonProcess], kafka: Any, schema: str, execute: Callable[..., Any]
) -> None:
    first = active(*once)
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    first.wait("shop", lambda s: s["rows"] == 1)
    first.kill()
    other = next(one for one in once if one is not first)
    other.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (2)")
    other.wait("shop", lambda s: s["rows"] == 1)
    messages = [message for message in topic(kafka, schema) if not message["isDdl"]]
    assert [row["id"] for message in messages for row in message["data"]] == ["1", "2"]


def test_a_reload_takes_over_in_place_and_a_destination_that_is_removed_gives_its_nodes_back(
    service: Service, pair: tuple[DaemonProcess, DaemonProcess], execute: Callable[..., Any], tmp_path: Path
) -> None:
    one, two = pair
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: ids(tmp_path / "out.jsonl") == ["1"])
    headrace, shop = one.folder / "headrace.toml", one.folder / "destinations" / "shop.toml"
    headrace.write_text(headrace.read_text().replace(f'"{SESSION}s"', '"5s"'))
    os.kill(one.pid, signal.SIGHUP)
    reported = f'"keys": ["{service.kind}"], "event": "headrace.toml has changed; that needs a restart of the daemon"'
    eventually(lambda: reported in one.log.read_text(), explain=lambda: one.log.read_text()[-2000:])
    two_shop = two.folder / "destinations" / "shop.toml"
    two_shop.write_text(two_shop.read_text() + "\n[message]\nrows_per_message = 1\n")
    os.kill(two.pid, signal.SIGHUP)  # who stands by is set up anew, and stands by again
    eventually(lambda: "the destinations change" in two.log.read_text())
    two.wait("shop", lambda s: s["state"] == "STANDBY" and s["holder"].startswith("one"))
    shop.unlink()
    os.kill(one.pid, signal.SIGHUP)
    two.wait_state("shop", "STREAMING")
    eventually(lambda: "shop" not in one.health()[1]["destinations"])
    execute("INSERT INTO t VALUES (2)")
    eventually(lambda: ids(tmp_path / "out.jsonl") == ["1", "2"])
    facts = json.loads(two.command("cluster", "--json")[1])["destinations"]["shop"]
    assert (facts["node"], facts["waiting"]) == ("two", [])
