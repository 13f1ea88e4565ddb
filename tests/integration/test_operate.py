"""What operators do with a destination that runs: pause, resume and restart it, and look at it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proxy import Proxy
from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server


def names(out: Path) -> list[str]:
    return [row["name"] for one in read_jsonl(out) for row in one["data"] or ()]


def test_a_paused_destination_publishes_nothing_also_after_a_restart_of_the_daemon_until_it_is_resumed(
    mysql_site: Site, start: Callable[[Site], DaemonProcess], out: Path
) -> None:
    process = start(mysql_site)
    mysql_site.run("CREATE TABLE p (id INT PRIMARY KEY, name VARCHAR(20))", "INSERT INTO p VALUES (1, 'before')")
    eventually(lambda: names(out) == ["before"])
    assert process.command("pause", "shop") == (0, "shop: is paused\n")
    paused = process.wait_state("shop", "PAUSED")
    assert paused["reason"] == "operator"
    assert "headrace resume shop" in paused["message"]
    mysql_site.run("INSERT INTO p VALUES (2, 'meanwhile')")
    process.kill()
    process.start()
    process.wait_state("shop", "PAUSED")
    assert process.command("pause", "shop")[0] == 0, "to pause what is paused is no error"
    assert process.command("restart", "shop")[0] == 0
    lag = process.wait("shop", lambda status: status["lag_seconds"] > 1)
    assert lag["state"] == "PAUSED"
    assert names(out) == ["before"]
    before = process.health()[1]["destinations"]["shop"]["position"]
    code, text = process.command("position", "reset", "shop", "--yes")
    assert (code, "the pause is stored with its position" in text) == (1, True), text
    assert process.terminate() == 0
    code, text = process.command("position", "reset", "shop", "--yes")
    assert (code, "the pause is stored with its position" in text) == (1, True), text
    code, text = process.command("position", "set", "shop", f"{before['file']}:{before['offset']}", "--yes")
    assert code == 0, text
    process.start()
    moved = process.wait_state("shop", "PAUSED")["position"]
    assert {**moved, "last_transaction": before["last_transaction"]} == before  # a place has none before it
    assert process.command("resume", "shop") == (0, "shop: goes on\n")
    eventually(lambda: names(out) == ["before", "meanwhile"])
    process.wait("shop", lambda status: status["state"] == "STREAMING" and status["lag_seconds"] == 0)
    assert process.terminate() == 0


def test_what_is_resumed_and_can_t_begin_is_not_shown_as_paused(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    with Proxy(mysql_site.server.host, mysql_site.server.port) as proxy:
        sink = f'type = "jsonl"\npath = "{out}"'
        process = daemon(shop=destination_toml(proxy, mysql_site.schema, sink)).start()
        process.wait_state("shop", "STREAMING")
        assert process.command("pause", "shop")[0] == 0
        process.wait_state("shop", "PAUSED")
        proxy.freeze()
        assert process.command("resume", "shop")[0] == 0
        # The source does not answer, for connect_timeout: meanwhile a monitor must not take it for well.
        status = process.wait("shop", lambda status: status["state"] != "PAUSED", 5)
        assert (status["state"], status["healthy"], status["message"]) == ("STARTING", False, "")
        proxy.thaw()
        process.wait_state("shop", "STREAMING")
    resumed = [one for one in map(json.loads, process.log.read_text().splitlines()) if "resumed" in one["event"]]
    assert [bool(one["by"]) for one in resumed] == [True]


def test_a_restart_loses_and_doubles_nothing(
    mysql_site: Site, start: Callable[[Site], DaemonProcess], out: Path
) -> None:
    process = start(mysql_site)
    mysql_site.run("CREATE TABLE p (id INT PRIMARY KEY, name VARCHAR(20))")
    for number in range(3):
        mysql_site.run(f"INSERT INTO p VALUES ({number}, 'row {number}')")
        assert process.command("restart", "shop") == (0, "shop: was restarted\n")
    eventually(lambda: names(out) == ["row 0", "row 1", "row 2"])
    assert process.wait_state("shop", "STREAMING")["restarts"] == 0, "no failure is counted"
    assert process.terminate() == 0


def test_status_says_how_it_is_and_by_its_exit_status_whether_that_is_well(
    mysql_site: Site, start: Callable[[Site], DaemonProcess]
) -> None:
    process = start(mysql_site)
    code, text = process.command("status")
    assert code == 0
    head, row = text.splitlines()
    assert head.split()[:3] == ["DESTINATION", "STATE", "SINCE"]
    assert row.split()[:2] == ["shop", "STREAMING"]
    code, text = process.command("status", "--json", "shop")
    assert (code, json.loads(text)["destinations"]["shop"]["state"]) == (0, "STREAMING")
    assert "there is no destination 'none'" in process.command("status", "none")[1]
    assert "there is no destination no one" in process.command("pause", "no one")[1]
    wrong = process.folder / "destinations" / "wrong.toml"
    wrong.write_text("this is no TOML")  # the daemon runs on, and can be asked
    assert process.command("status", "shop")[0] == 0
    assert process.command("restart", "shop")[0] == 0
    wrong.unlink()
    process.kill()
    code, text = process.command("status")
    assert code == 1
    assert "no daemon answers" in text


def test_the_token_is_for_the_daemon_s_user_alone_and_another_one_is_not_heard(
    mysql_site: Site, start: Callable[[Site], DaemonProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start(mysql_site)
    file = process.folder / "var" / "headrace.token"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    monkeypatch.setenv("HEADRACE_TOKEN", "another-one-entirely")
    code, text = process.command("pause", "shop")
    assert (code, "does not know the token" in text) == (1, True), text
    assert text.splitlines()[-1] == "see: docs/troubleshooting.md#http"
    monkeypatch.setenv("HEADRACE_TOKEN", "se-\n-cret")
    code, text = process.command("pause", "shop")
    assert (code, "the token holds characters that no header may have" in text) == (1, True), text
    assert "cret" not in text
    monkeypatch.setenv("HEADRACE_TOKEN", file.read_text())  # with the end of its line
    assert process.command("pause", "shop")[0] == 0
    process.wait_state("shop", "PAUSED")
    code, text = process.command("snapshot", "cancel", "shop")
    assert (code, "does not stream now: it is PAUSED" in text) == (1, True), text
    assert text.splitlines()[-1] == "see: docs/troubleshooting.md#refused"


def test_a_request_to_a_destination_whose_lock_is_unusable_is_refused_and_not_tried_without_end(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    process = daemon(shop=destination_toml(mysql_site.server, mysql_site.schema, f'type = "jsonl"\npath = "{out}"'))
    lock = process.folder / "var" / "shop.lock"
    lock.mkdir(parents=True)
    process.start()
    before = process.wait("shop", lambda status: status["restarts"] > 1)["restarts"]
    code, text = process.command("restart", "shop")
    assert (code, "it can't be done now" in text, "shop.lock" in text) == (1, True, True), text
    assert process.health()[1]["destinations"]["shop"]["restarts"] <= before + 4
    lock.rmdir()
    process.wait_state("shop", "STREAMING", 60)
    assert process.command("restart", "shop") == (0, "shop: was restarted\n")
    assert process.terminate() == 0
