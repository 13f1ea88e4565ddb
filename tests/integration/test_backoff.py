"""How long a destination waits for a source that was away: no longer than the outage, however brief that was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.wiring import ADAPTERS, Wiring
from headrace.destination.destination import Destination
from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError
from headrace.model import State
from headrace.settings.destination import DestinationSettings
from headrace.settings.load import Loader
from headrace.supervisor.supervisor import RestartPolicy, Supervisor
from tests.proxy import Proxy
from tests.site import Site
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server


class Patient(RestartPolicy):
    """Waits as long as after many failures."""

    def delay(self, failures: int, error: HeadraceError) -> float:
        return 600.0


async def reached(condition: Callable[[], bool], limit: float) -> float:
    """The seconds until it was so."""
    began = time.monotonic()
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_a_source_that_was_away_for_three_seconds_does_not_wait_out_a_long_backoff(
    mysql_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    config = tmp_path / "headrace.toml"
    config.write_text(f'[state]\npath = "{tmp_path}/state.db"\n[http]\nlisten = ""\n')
    (tmp_path / "destinations").mkdir()
    with Proxy(mysql_site.server.host, mysql_site.server.port) as proxy:
        shop = destination_toml(proxy, mysql_site.schema, 'type = "null"')
        (tmp_path / "destinations" / "shop.toml").write_text(shop)
        settings = Loader(ADAPTERS, {"TEST_PASSWORD": "canal"}).load(config)
        wiring = Wiring(settings)

        def actor(destination: DestinationSettings, status: DestinationStatus) -> Destination:
            return Destination(destination, settings.daemon, wiring.dependencies(destination), status)

        boss = Supervisor(settings, actor, policy=Patient())
        await wiring.open()
        running = asyncio.create_task(boss.run())
        try:
            status = boss.handles["shop"].status
            await reached(lambda: status.state is State.STREAMING, 30)
            proxy.refuse()
            await reached(lambda: status.restarts > 0, 30)
            await asyncio.sleep(3)
            assert status.state is not State.STREAMING
            proxy.thaw()
            assert await reached(lambda: status.state is State.STREAMING, 60) < 5
            mysql_site.run("INSERT INTO t VALUES (1)")
            await reached(lambda: status.published.rows == 1, 30)
        finally:
            boss.request_stop()
            await running
            await wiring.close()


async def test_an_error_of_a_source_that_is_away_names_its_address(
    mysql_site: Site, out: Path, daemon: Callable[..., DaemonProcess]
) -> None:
    """Whether the connection breaks, is closed, or the server says that it ends the dump."""
    with Proxy(mysql_site.server.host, mysql_site.server.port) as proxy:
        address = f"{proxy.host}:{proxy.port}"
        process = daemon(shop=destination_toml(proxy, mysql_site.schema, f'type = "jsonl"\npath = "{out}"')).start()
        for number, reset in enumerate((False, True, None), 1):
            process.wait_state("shop", "STREAMING")
            if reset is None:
                dumps = "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
                for (thread,) in mysql_site.run(dumps):
                    mysql_site.run(f"KILL {thread}")
            else:
                proxy.close_all(reset=reset)
            status = process.wait("shop", lambda s, number=number: s["restarts"] >= number)
            assert address in status["last_error"], status["last_error"]
        assert process.terminate() == 0
