"""`headrace check` with servers away: its own lines say so, and no library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devstack.ports import free_port
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_brokers_that_are_away_are_named_by_check_in_its_own_words(
    delivery: str, mysql: Any, schema: str, daemon: Callable[..., DaemonProcess]
) -> None:
    away = f"127.0.0.1:{free_port()}"
    sink = f'type = "kafka"\nbootstrap_servers = "{away}"\nrequest_timeout = "3s"\ndelivery = "{delivery}"'
    done = daemon(shop=destination_toml(mysql, schema, sink)).run("check")
    assert done.returncode == 1
    assert f"Kafka at {away} can't be reached" in done.stdout
    assert done.stderr == ""
