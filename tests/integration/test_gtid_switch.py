"""A source whose gtid_mode is turned on while transactions without GTIDs are unread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from devstack import Stack
from tests.binlogs import connect
from tests.site import wait_for
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server
STEPS = ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")


def test_transactions_that_the_source_gives_to_nobody_are_reported_with_what_to_do(
    stack: Stack, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    off = ("--gtid-mode=OFF", "--enforce-gtid-consistency=ON")
    server, out = stack.mysql(None, *off, name="switch", server_id=77), tmp_path / "out.jsonl"
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.t (id INT PRIMARY KEY)")
        process = daemon(shop=destination_toml(server, "shop", f'type = "jsonl"\npath = "{out}"')).start()
        process.wait_state("shop", "STREAMING")
        cursor.execute("INSERT INTO shop.t VALUES (1)")
        wait_for(out, "1")
        process.terminate()
        status, printed = process.command("check")
        assert status == 0
        assert "once this destination has read all that was written without GTIDs" in printed
        cursor.execute("INSERT INTO shop.t VALUES (2)")
        _, printed = process.command("check")
        assert "not yet, it is at" in printed
        for step in STEPS:
            cursor.execute(f"SET GLOBAL gtid_mode = '{step}'")
        cursor.execute("INSERT INTO shop.t VALUES (3)")
        process.start()
        found = process.wait_state("shop", "FAILED")
        assert "transactions without GTIDs" in found["last_error"]
        assert "SET GLOBAL gtid_mode = 'ON_PERMISSIVE'" in found["last_error"]
        cursor.execute("SET GLOBAL gtid_mode = 'ON_PERMISSIVE'")
        wait_for(out, "3", limit=60)
        cursor.execute("SET GLOBAL gtid_mode = 'ON'")
        cursor.execute("INSERT INTO shop.t VALUES (4)")
        wait_for(out, "4", limit=60)
        process.terminate()
        process.start()
        process.wait_state("shop", "STREAMING")
        cursor.execute("INSERT INTO shop.t VALUES (5)")
        wait_for(out, "5")
