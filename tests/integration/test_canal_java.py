"""Canal's own Java client, through rollbacks, disconnects, kills and take-overs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devstack import canal
from devstack.ports import free_port
from devstack.process import clean_environment
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server

SOURCE = Path(__file__).parent.parent / "canal_java" / "Reader.java"


@pytest.mark.parametrize(
    ("rows", "kills"), [(5_000, 1), pytest.param(200_000, 6, marks=pytest.mark.long)], ids=["few", "many"]
)
@pytest.mark.parametrize("finds", ["by port", "by Canal's nodes"])
def test_the_java_client_gets_every_row_in_order_through_take_overs(
    mysql: Any,
    zookeeper: Any,
    stack: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
    finds: str,
    rows: int,
    kills: int,
) -> None:
    """The Java client has no setting for the path of Canal's nodes: a path of the test's own is part of its hosts."""
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))")
    settings = f'[zookeeper]\nhosts = "{zookeeper.hosts}"\nroot = "/{schema}"\nsession_timeout = "4s"'
    ports = [free_port()]
    where, more = str(ports[0]), ""
    if finds == "by Canal's nodes":
        ports.append(free_port())
        where, more = f"{zookeeper.hosts}/{schema}", f'\nzookeeper_path = "/{schema}/otter/canal"'

    def of(port: int) -> str:
        sink = f'type = "canal"\nlisten = "127.0.0.1:{port}"\nuser = "reader"\npassword = "secret"{more}'
        return destination_toml(mysql, schema, sink)

    active = daemon(shop=of(ports[0]), settings=settings).start()
    active.wait_state("shop", "STREAMING", 60)
    other = daemon(shop=of(ports[-1]), settings=settings, node="b").start()
    out = tmp_path / "rows"
    with out.open("wb") as rows_out, (tmp_path / "errors").open("wb") as errors:
        client = subprocess.Popen(
            [*canal.reader(stack.cache, SOURCE), where, "shop", "reader", "secret", "7", str(rows)],
            stdout=rows_out,
            stderr=errors,
            env=clean_environment(),
        )
        try:
            for first in range(1, rows, 500):
                execute("INSERT INTO t VALUES " + ",".join(f"({i}, 'x')" for i in range(first, first + 500)))
                if first // 500 % (rows // 500 // (kills + 1) + 1) == rows // 500 // (kills + 1):
                    active.kill()
                    other.wait_state("shop", "STREAMING", 60)
                    active, other = other, active.start()
            deadline = time.monotonic() + 300
            while client.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
            assert client.poll() == 0, (tmp_path / "errors").read_text()[-2000:]
        finally:
            client.kill()
            client.wait()
    ids = [int(line.split()[1]) for line in out.read_text().splitlines()]
    newest, again = 0, 0
    for number in ids:
        if number == newest + 1:
            newest = number
        else:
            assert number <= newest, f"{newest + 1} to {number - 1} are missing"
            again += 1
    assert newest == rows
    # The position moves with whole batches of messages: 512 KiB, which are some 13,000 of these rows. Beside the one in
    # which the client was, what it had acknowledged since the last checkpoint comes again.
    assert again <= kills * 20_000
