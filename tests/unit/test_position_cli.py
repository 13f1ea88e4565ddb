"""`headrace position` as users see it where no server is needed: a real store, real arguments, what is printed."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from headrace.adapters.local.lock import FileLock
from headrace.adapters.sqlite.state import SqliteStore
from headrace.cli.common import time_text
from headrace.cli.main import main
from headrace.cli.position_show import remedy
from headrace.model import Gap, OpenXa, Position
from headrace.mysql.position.inventory import Binlog, Inventory
from headrace.mysql.position.report import Asked, judge
from headrace.ports.state import StateChange
from headrace.settings.destination import SourceSettings
from headrace.times import duration_text
from headrace_common import logs

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
POSITION = Position(UUID, "mysql-bin.000003", 4711, f"{UUID}:1-23", 2, (OpenXa("1:61:", "mysql-bin.000002", 4),), 99)
SOURCE = SourceSettings.model_validate({"host": "h", "user": "u", "password": "p"})


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """A configuration whose source refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        (tmp_path / "destinations").mkdir()
        (tmp_path / "destinations" / "shop.toml").write_text(
            f'[source]\nhost = "127.0.0.1"\nport = {bound.getsockname()[1]}\nuser = "u"\npassword = "p"\n'
            'connect_timeout = "2s"\nstart = "earliest"\n[route]\ntopic = "t"\n[sink]\ntype = "null"\n'
        )
        (tmp_path / "headrace.toml").write_text(
            f'[daemon]\nnode = "n1"\n[state]\npath = "{tmp_path}/var/headrace.db"\n[http]\nlisten = ""\n'
        )
        yield tmp_path / "headrace.toml"


@pytest.fixture
def stored(config: Path) -> Callable[..., None]:
    """Stores changes for shop."""

    def write(*changes: StateChange) -> None:
        async def run() -> None:
            store = SqliteStore(config.parent / "var" / "headrace.db")
            await store.open()
            guard = await store.begin_epoch("shop")
            for change in changes:
                guard = await store.commit("shop", guard, change)
            await store.close()

        asyncio.run(run())

    return write


@pytest.fixture
def position(config: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        try:
            status = main(["position", command, "--config", str(config), *arguments])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


Run = Callable[..., tuple[int, str, str]]


def test_without_a_store_every_command_names_the_searched_places_and_creates_none(position: Run, config: Path) -> None:
    for words in (("show",), ("history", "shop"), ("set", "shop", "latest", "--yes"), ("reset", "shop", "--yes")):
        status, _, err = position(*words)
        assert status == 1
        assert f"no state store {config.parent}/var/headrace.db" in err
    assert not (config.parent / "var").exists()


def test_show_reports_what_is_stored_when_the_source_is_away(position: Run, stored: Callable[..., None]) -> None:
    stored(StateChange(POSITION))
    status, out, _ = position("show")
    assert status == 1
    lines = out.splitlines()
    assert lines[0] == "shop"
    table = dict(line.strip().split("  ", 1) for line in lines[1:])
    assert table["position"].strip() == "mysql-bin.000003:4711, 2 events of the transaction done"
    assert table["GTID set"].strip() == f"{UUID}:1-23"
    assert table["open XA"].strip() == "1:61:"
    assert table["last _pos"].strip() == "99"
    assert table["committed"].strip() == "-"
    assert table["epoch"].strip() == "1"
    assert table["run by"].strip() == "nobody"
    assert table["verdict"].strip().startswith("the source can't be asked: MySQL at 127.0.0.1:")
    columns = {len(line) - len(line[2:].split("  ", 1)[1].lstrip()) for line in lines[1:]}
    assert len(columns) == 1  # aligned
    status, out, _ = position("show", "shop", "--json")
    facts = json.loads(out)["shop"]
    assert (status, facts["stored"], facts["epoch"], facts["run_by"]) == (1, POSITION.to_dict(), 1, "")
    assert facts["verdict"]["state"] == "unknown"


def test_history_is_newest_first_with_who_and_why(position: Run, stored: Callable[..., None]) -> None:
    gap = Gap("position_purged", "b.000001:4", "b.000003:4", files=2, bytes=1234, at_us=1)
    moved = {"gap": gap.to_dict(), "by": "ops@h", "where": "earliest"}
    checkpoints = [StateChange(Position(UUID, "b.000003", 100 + i)) for i in range(30)]
    stored(
        StateChange(POSITION),
        StateChange(Position(UUID, "b.000003", 4), actor="policy", details={"gap": gap.to_dict()}),
        StateChange(Position(UUID, "b.000003", 4), actor="operator", details=moved),
        StateChange(None, actor="operator", details={"by": "ops@h"}),
        *checkpoints,
    )
    status, out, _ = position("history", "shop")
    lines = out.splitlines()
    assert status == 0
    assert [line.split()[1] for line in lines] == ["actor", *["checkpoint"] * 5, "operator", "operator", "policy"]
    assert "b.000003:129" in lines[1]
    assert "taken away" in lines[6]
    assert lines[7].endswith("position_purged: b.000001:4 -> b.000003:4: 2 files, 1,234 bytes given up, by ops@h")
    assert len({line.index(line.split()[3]) for line in lines}) == 1
    entries = json.loads(position("history", "shop", "--json", "--limit", "32")[1])
    assert [entry["version"] for entry in entries] == list(range(34, 2, -1))
    assert entries[30]["position"] is None
    assert entries[31]["details"] == moved
    assert Gap.from_dict(entries[31]["details"]["gap"]) == gap


async def nothing_known() -> int:
    return 0


def test_a_running_daemon_is_named(position: Run, stored: Callable[..., None], config: Path) -> None:
    stored(StateChange(POSITION))
    lock = FileLock(config.parent / "var" / "shop.lock", "n7")
    assert asyncio.run(lock.try_acquire(nothing_known))
    try:
        assert "run by     n7 (pid " in position("show")[1]
        for words in (("set", "shop", "latest", "--yes"), ("reset", "shop", "--yes")):
            status, _, err = position(*words)
            assert status == 1
            assert "shop is run by n7 (pid " in err
    finally:
        asyncio.run(lock.release())
    assert "run by     nobody" in position("show")[1]


def test_nothing_is_changed_unasked(position: Run, stored: Callable[..., None], monkeypatch: Any) -> None:
    stored(StateChange(POSITION))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    status, _, err = position("reset", "shop")
    assert status == 1
    assert "give --yes" in err
    assert json.loads(position("show", "--json")[1])["shop"]["stored"] == POSITION.to_dict()


def test_a_reset_leaves_the_numbers_and_an_entry(position: Run, stored: Callable[..., None]) -> None:
    stored(StateChange(POSITION))
    status, out, _ = position("reset", "shop", "--yes")
    assert status == 0
    assert "mysql-bin.000003:4711" in out
    assert "by [source] start (earliest)" in out
    facts = json.loads(position("show", "--json")[1])["shop"]
    assert (facts["stored"], facts["last_pos"]) == (None, "99")
    (newest, _) = json.loads(position("history", "shop", "--json")[1])
    assert (newest["actor"], newest["position"]) == ("operator", None)
    assert newest["details"]["gap"]["from"] == "mysql-bin.000003:4711+2"
    assert "@" in newest["details"]["by"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("set", "shop", "somewhere"), "'somewhere' should be"),
        (("set", "shop", "b.000001:3"), "offset should be 4 or more"),
        (("set", "shop", "2026-01-31T12:00:00"), "zone"),
        (("set", "nobody", "latest", "--yes"), "there is no destination 'nobody'; there are shop"),
        (("reset", "nobody", "--yes"), "there is no destination 'nobody'"),
        (("history", "nobody"), "there is no destination 'nobody'"),
        (("history", "shop", "--limit", "x"), "whole number"),
        (("show", "nobody"), "there is no destination 'nobody'"),
        (("move", "shop"), "invalid choice"),
    ],
)
def test_wrong_words_are_one_sentence_and_status_2(position: Run, words: tuple[str, ...], text: str) -> None:
    status, _, err = position(*words)
    assert status == 2
    assert text in err
    assert "Traceback" not in err


def inventory(**more: Any) -> Inventory:
    facts: dict[str, Any] = {
        "server_uuid": UUID,
        "version": "9.7.4",
        "mariadb": False,
        "gtid_mode": False,
        "files": (Binlog("b.000003", 300), Binlog("b.000004", 0), Binlog("b.000005", 500)),
        "end": ("b.000005", 500),
        "executed": "",
        "purged": "",
        "expire_seconds": 60,
    }
    return Inventory(**{**facts, **more})


GTIDS = {"gtid_mode": True, "executed": f"{UUID}:1-30", "purged": f"{UUID}:1-10"}


@pytest.mark.parametrize(
    ("position", "facts", "state", "text"),
    [
        (None, {}, "ok", "it begins by [source] start (latest)"),
        (Position(UUID, "b.000003", 300), {}, "ok", "the source can serve it"),
        (Position(UUID, "b.000003", 301), {}, "POSITION_LOST", "beyond_end: b.000003 ends at 300"),
        (Position(UUID, "b.000004", 4), {}, "POSITION_LOST", "position_purged: b.000004 is listed and gone"),
        (Position(UUID, "b.000002", 4), {}, "POSITION_LOST", "no longer has b.000002; its oldest is b.000003"),
        (Position(UUID, "b.000009", 4), {}, "SOURCE_CHANGED", "binlogs end before b.000009"),
        (Position("other", "b.000003", 4), {}, "SOURCE_CHANGED", "another server"),
        (
            Position(UUID, "b.000005", 4, open_xa=(OpenXa("x", "b.000001", 4),)),
            {},
            "POSITION_LOST",
            "no longer has b.000001",
        ),
        (Position("other", "", 4, f"{UUID}:1-12"), GTIDS, "ok", "the source can serve it"),
        (Position(UUID, "b.000003", 4, f"{UUID}:1-8"), GTIDS, "POSITION_LOST", "gtids_purged: the source has purged 2"),
        (Position(UUID, "b.000003", 4, f"{UUID}:1-32"), GTIDS, "SOURCE_CHANGED", "never executed 2 transactions"),
        (Position(UUID, "b.000003", 4, f"{UUID}:1-32", own_gtids=f"{UUID}:31-32"), GTIDS, "ok", "can serve it"),
    ],
)
def test_the_verdict_is_the_state_that_the_destination_would_take(
    position: Position | None, facts: dict[str, Any], state: str, text: str
) -> None:
    found, verdict = judge(SOURCE, position, Asked("h:1", inventory(**facts)))
    assert found == state
    assert text in verdict
    assert state == "ok" or verdict.startswith(f"{state}: ")


def test_warnings_do_not_go_to_standard_output_and_what_is_below_them_is_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a command's own process
    log = structlog.get_logger("headrace.test")
    before = structlog.get_config()
    with logs.for_commands():
        log.debug("a detail")
        log.info("a fact")
        log.warning("a worry", about="x")
        logging.getLogger("aiokafka").error("Unable connect to a node")
        logging.getLogger("asyncio").error("Task exception was never retrieved")
    assert structlog.get_config() == before
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "a worry" in printed.err
    assert "Unable connect" not in printed.err
    assert "never retrieved" in printed.err
    assert "a detail" not in printed.err
    assert "a fact" not in printed.err


def test_what_is_to_be_done_is_a_command_as_it_is_typed() -> None:
    for state in ("POSITION_LOST", "SOURCE_CHANGED"):
        assert "headrace position set shop WHERE" in remedy("shop", state)
        assert remedy("shop", state).endswith(f"see docs/troubleshooting.md#{state.lower()}")
    assert remedy("shop", "ok") == remedy("shop", "unknown") == ""


def test_a_set_of_many_intervals_does_not_hide_the_rest_of_a_table(position: Run, stored: Callable[..., None]) -> None:
    many = UUID + "".join(f":{2 * i + 1}" for i in range(5000))
    stored(StateChange(Position(UUID, "", 4, many)))
    for command in (("show",), ("history", "shop")):
        assert max(map(len, position(*command)[1].splitlines())) < 400
    assert json.loads(position("show", "--json")[1])["shop"]["stored"]["gtid_set"] == many
    assert json.loads(position("history", "shop", "--json")[1])[0]["position"]["gtid_set"] == many


def test_a_reader_that_has_seen_enough_is_no_traceback(config: Path, stored: Callable[..., None]) -> None:
    stored(*(StateChange(Position(UUID, "b.000003", 100 + i)) for i in range(300)))
    words = ["position", "history", "shop", "--json", "--limit", "300", "--config", str(config)]
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 1


def test_times_and_durations_are_for_people() -> None:
    assert time_text(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
    assert time_text(0) == "-"
    assert [duration_text(seconds) for seconds in (0, 59.4, 90, 5400, 2592000)] == [
        "0 seconds",
        "59 seconds",
        "1.5 minutes",
        "1.5 hours",
        "30.0 days",
    ]
