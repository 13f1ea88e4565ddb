"""Servers that crash, are reset, restored, or set up so that they can't serve: what the daemon says, and the remedy."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from headrace.mysql.events.gtid import GtidSet
from tests.lost import GTIDS, KINDS, MARIADB, LostPlace, start_server
from tests.support import DaemonProcess, eventually

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[tuple[Any, str]]:
    running = start_server(stack, request.param, "servers")
    yield running, request.param
    running.kill()


@pytest.fixture
def place(
    request: pytest.FixtureRequest, server: tuple[Any, str], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> LostPlace:
    return LostPlace(*server, f"lost{abs(hash(request.node.name)) % 10**8}", daemon, tmp_path / "out.jsonl")


def test_a_crash_that_took_the_end_of_the_last_binlog(place: LostPlace) -> None:
    """The server cuts its file back to the last whole transaction, behind which we were already."""
    position = place.published(1, 2, 3)
    last = place.files()[-1]
    place.server.kill()
    with place.path(last).open("r+b") as file:
        file.truncate(position.offset - 10)
    place.server.start()
    if place.kind == GTIDS and GtidSet(executed(place)).contains(GtidSet(position.gtid_set)):
        place.follow()  # its tables still have the transaction, and so has its set of GTIDs: nothing is amiss
    elif place.kind == GTIDS:
        status = place.stands("SOURCE_CHANGED", "", "transactions that were published")
        assert str(GtidSet(position.gtid_set).minus(GtidSet(executed(place)))) in status["last_error"]
        place.choose("latest")
    else:
        place.stands("POSITION_LOST", "beyond_end", last, "beyond the end")
        place.choose("next-file")
    place.daemon.wait_state("shop", "STREAMING")
    place.insert(4)
    place.wait_ids(1, 2, 3, 4)
    place.leave()


def executed(place: LostPlace) -> str:
    return str(place.run("SELECT @@GLOBAL.gtid_executed")[0][0]).replace("\n", "")


def test_a_reset_while_the_destination_is_stopped(place: LostPlace) -> None:
    position = place.published(1, 2)
    place.reset()
    place.insert(3)
    status = place.stands("SOURCE_CHANGED", "", "it was reset, or restored")
    if place.kind == GTIDS:
        extra = GtidSet(position.gtid_set).minus(GtidSet(executed(place)))
        assert str(extra) in status["last_error"], "the list of what was published and is unknown to it"
    place.choose("earliest")
    place.wait_ids(1, 2, 3)
    place.leave()


def test_a_reset_after_which_the_names_of_the_files_have_come_again(place: LostPlace) -> None:
    position = place.published(1, 2)
    place.reset()
    while place.files()[-1] < position.file:
        place.next_file()
    place.insert(3, 4, 5, 6, 7, 8)
    assert place.run(f"SHOW BINLOG EVENTS IN '{position.file}'")[-1][4] > position.offset, "it looks as if it was there"
    place.stands("SOURCE_CHANGED", "", "it was reset, or restored")
    place.choose("earliest")
    place.wait_ids(1, 2, 3, 4, 5, 6, 7, 8)
    place.leave()


def test_a_reset_after_which_the_file_is_shorter_and_all_numbers_were_given_again(place: LostPlace) -> None:
    """The numbers of what was published are in the new file, and what they belong to now was not published."""
    place.reset()
    place.follow()
    old = range(1, 11)
    for number in old:
        place.run(f"INSERT INTO {place.schema}.t VALUES ({number}, REPEAT('v', 200))")
    place.wait_ids(*old)
    position = place.leave()
    place.reset()
    new = range(101, 121)
    for number in new:
        place.insert_wide(number)
        if number == new[11]:
            place.next_file()
    name, size = place.run("SHOW BINARY LOGS")[0][:2]
    assert name == position.file
    assert int(size) < int(position.last_transaction.rpartition(":")[2])
    if place.kind == GTIDS:
        place.stands("SOURCE_CHANGED", "", "it was reset, or restored")
    else:
        place.stands("POSITION_LOST", "beyond_end", "another one under the same name")
    place.choose("earliest")
    place.wait_ids(*old, *new)
    place.leave()


def test_a_reset_under_a_running_dump_is_not_silent(place: LostPlace) -> None:
    place.follow()
    place.insert(1, 2)
    place.wait_ids(1, 2)
    place.reset()
    place.insert(3)
    status = place.daemon.wait_state("shop", "SOURCE_CHANGED")
    assert "it was reset, or restored" in status["last_error"]
    assert place.daemon.health()[0] == 503
    place.choose("earliest")
    place.wait_ids(1, 2, 3)
    place.leave()


def test_a_server_restored_from_an_older_copy_and_put_right_again(place: LostPlace) -> None:
    place.published(1)
    place.server.kill()
    data = Path(place.server.datadir)
    older, newer = data.with_name("older"), data.with_name("newer")
    shutil.copytree(data, older, ignore=shutil.ignore_patterns("*.sock*"))
    place.server.start()
    place.follow()
    place.insert(2, 3)
    place.wait_ids(1, 2, 3)
    position = place.leave()
    place.server.kill()
    data.rename(newer)
    older.rename(data)
    place.server.start()
    if place.kind == GTIDS:
        status = place.stands("SOURCE_CHANGED", "", "has not executed 2 transactions that were published", "restored")
        assert str(GtidSet(position.gtid_set).minus(GtidSet(executed(place)))) in status["last_error"]
    else:  # the file has the number of ours, and is too short yet
        place.stands("POSITION_LOST", "beyond_end", position.file)
    place.leave()
    place.server.kill()
    shutil.rmtree(data)
    newer.rename(data)
    place.server.start()
    place.insert(4)
    place.follow()
    place.wait_ids(1, 2, 3, 4)
    place.leave()


def test_a_server_that_writes_no_binlog(place: LostPlace) -> None:
    place.published(1)
    place.server.extra_args.append("--skip-log-bin")
    place.again()
    try:
        place.stands("FAILED", "", "writes no binlog", "log_bin")
        place.leave()
    finally:
        place.server.extra_args.remove("--skip-log-bin")
        place.again()
    place.follow()
    place.insert(2)
    place.wait_ids(1, 2)
    place.leave()


@pytest.mark.parametrize("right", ["REPLICATION SLAVE", "REPLICATION CLIENT"])
def test_a_right_that_was_taken_away_is_named_with_its_grant(place: LostPlace, right: str) -> None:
    if place.kind == MARIADB and right == "REPLICATION CLIENT":
        right = "BINLOG MONITOR"
    place.published(1)
    place.run(f"REVOKE {right} ON *.* FROM canal@'%'")
    try:
        place.insert(2)
        place.stands("FAILED", "", f"GRANT {right} ON *.* TO 'canal'@'%';")
    finally:
        place.run(f"GRANT {right} ON *.* TO canal@'%'")
    place.try_now()
    eventually(lambda: place.ids() == [1, 2])
    place.leave()
