"""The daemon's status page in a real browser: with one destination, with fifty, with two daemons, live, hostile, and
left alone."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from devstack import Stack
from headrace import __version__
from headrace.destination.handle import DestinationHandle
from headrace.destination.requests import RequestRefused
from headrace.destination.status import DestinationStatus
from headrace.errors import SinkError
from headrace.http.facts import Facts, Options
from headrace.http.server import HttpServer
from headrace.lease import Lease
from headrace.model import Position, State
from headrace.parking.parking import Waiting
from tests.browser import Page, opened
from tests.handles import FakeOperator, served
from tests.support import DaemonProcess, destination_toml

pytestmark = [pytest.mark.server, pytest.mark.long]

TOKEN = "a-token-of-the-tests"
HOSTILE = "<img src=x onerror=document.title='hurt'>"
PICTURES = "HEADRACE_PICTURES"
"""A variable of the environment that names a folder: docs/images/status-*.png are made with it."""
NAMES = "[...document.querySelectorAll('article:not([hidden]) h2')].map((one) => one.textContent)"


def streaming(name: str, number: int = 1) -> DestinationStatus:
    """A destination that is well, and a little behind."""
    made = DestinationStatus(name)
    made.holding.take(Lease(10.0))
    made.enter(State.STREAMING)
    made.since -= 3600 * number
    now_us = time.time_ns() // 1000
    made.stored.position = Position("uuid", f"mysql-bin.{number:06d}", 1000 * number, commit_time_us=now_us)
    made.lag.confirmed(now_us)
    made.source.address, made.holding.epoch, made.published.rows = "127.0.0.1:3306", number, 1_000_000 * number
    made.retention.share, made.retention.seconds, made.retention.bytes = 0.9, 86400.0 * 6, 10**9
    return made


def ill(name: str) -> DestinationStatus:
    """One whose broker is away."""
    made = streaming(name, 7)
    error = SinkError("Kafka at 127.0.0.1:9092 can't be reached", remedy="check whether the brokers run")
    made.note_error(error)
    made.enter(State.STALLED, "sink", str(error))
    made.note_parked(Waiting(12, 4000, 3, 0))
    made.lag.confirmed(time.time_ns() // 1000 - 400_000_000)
    made.retention.share = 0.1
    made.backlog.bytes, made.backlog.rate, made.backlog.eta = 1_500_000_000, 2_000_000.0, 700.0
    return made


def reading(name: str) -> DestinationStatus:
    """One with a snapshot under way."""
    made = streaming(name, 3)
    made.snapshots.now = {
        "id": "first", "kind": "initial", "state": "reading", "reason": "", "tables": ["shop.t"], "tables_done": 3,
        "tables_left": 2, "rows": 123_456, "rows_left": 300_000, "percent": 29.2, "rows_per_second": 12_000.0,
        "eta_seconds": 25.0, "waiting": 0,
    }  # fmt: skip
    made.enter(State.SNAPSHOTTING, "snapshot", "the rows that the tables have are published")
    return made


@pytest.fixture
def shop() -> DestinationStatus:
    return streaming("shop")


@pytest.fixture
def handles(shop: DestinationStatus) -> dict[str, DestinationHandle]:
    return {"shop": DestinationHandle(shop)}


@pytest.fixture
async def server(handles: dict[str, DestinationHandle]) -> AsyncIterator[HttpServer]:
    made = HttpServer(("127.0.0.1", 0), Facts(handles, "relay-1"), Options(TOKEN))
    await made.start()
    now = int(time.time())
    hour = [(now - 3600 + 10 * n, 0.2 + max(0.0, 40 - abs(n - 200)) / 4 + (n % 7) / 10, 900.0) for n in range(359)]
    made._history._samples["shop"] = deque(hour, maxlen=360)
    yield made
    await made.close()


@pytest.fixture
async def page(stack: Stack, server: HttpServer) -> AsyncIterator[Page]:
    async with opened(stack.chromium().url) as made:
        await made.size(1100, 760)
        await made.go(f"http://127.0.0.1:{server.port}/")
        yield made


async def keep(page: Page, name: str) -> None:
    if folder := os.environ.get(PICTURES):
        (Path(folder) / f"status-{name}.png").write_bytes(await page.picture())


async def text(page: Page, selector: str) -> str:
    return str(await page.value(f"document.querySelector({selector!r}).textContent"))


async def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways."""
    return bool(await page.value("document.documentElement.scrollWidth <= window.innerWidth"))


async def test_one_destination_is_shown_live(page: Page, shop: DestinationStatus) -> None:
    await page.eventually(f"{NAMES}.length === 1")
    assert await text(page, ".state strong") == "STREAMING"
    assert "for 1 h" in await text(page, ".since")
    facts = await text(page, "dl")
    assert "relay-1, epoch 1" in facts
    assert "mysql-bin.000001:1,000" in facts
    assert "90 %, 6 d left" in await text(page, ".retention")
    assert await page.value("document.querySelector('.line').getAttribute('d').split('L').length") > 340
    shop.enter(State.STALLED, "sink", "nothing was confirmed for more than 60 s")
    await page.eventually("document.querySelector('article').className === 'ill'")
    assert "see docs/troubleshooting.md#sink" in await text(page, ".message")
    for name, width, height, dark in (("one", 900, 620, False), ("dark", 900, 620, True), ("phone", 390, 800, False)):
        await page.size(width, height, dark=dark)
        assert await fits(page)
        await keep(page, name)
    assert page.errors == []


async def test_a_chinese_browser_reads_chinese(page: Page, server: HttpServer) -> None:
    agent = await page.value("navigator.userAgent")
    await page.call("Network.setUserAgentOverride", userAgent=agent, acceptLanguage="zh-CN")
    await page.go(f"http://127.0.0.1:{server.port}/")
    await page.eventually(f"{NAMES}.length === 1")
    assert "已持续 1 h" in await text(page, ".since")
    facts = await text(page, "dl")
    for part in ("relay-1，epoch 1", "位点mysql-bin.000001:1,000"):
        assert part in facts
    assert "90 %，还剩 6 d" in await text(page, ".retention")
    assert await text(page, "button[data-action=pause]") == "暂停"
    assert (await text(page, ".scale")).startswith("1 小时前")
    assert await page.value("document.documentElement.lang") == "zh-CN"
    assert page.errors == []


async def test_fifty_destinations_show_first_what_is_not_well_and_are_found_by_the_keyboard(
    page: Page, handles: dict[str, DestinationHandle]
) -> None:
    more = [streaming(f"orders-{number:02d}", number + 1) for number in range(47)]
    handles |= {one.name: DestinationHandle(one) for one in (*more, ill("billing"), reading("catalog"))}
    await page.eventually(f"{NAMES}.length === 50")
    await page.eventually(f"{NAMES}[0] === 'billing'")
    card = await text(page, "article")
    for part in ("12 messages, 3 need an operator", "1.5 GB at 2.0 MB/s, done in 11 min 40 s", "Last error (20"):
        assert part in card
    assert "Snapshot reading: 123,456 rows, 12,000 rows/s, 25 s left" in await text(page, "article[aria-label=catalog]")
    await keep(page, "fifty")
    await page.press("/", 191, "/")
    await page.eventually("document.activeElement.id === 'filter'")
    await page.type("orders-1")
    await page.eventually(f"{NAMES}.length === 10")
    await page.size(390, 800)
    assert await fits(page)
    del handles["orders-10"]
    await page.eventually(f"{NAMES}.length === 9")
    assert page.errors == []


async def test_names_and_errors_are_texts_whatever_they_hold(page: Page, handles: dict[str, DestinationHandle]) -> None:
    made = ill(HOSTILE)
    handles[HOSTILE] = DestinationHandle(made)
    made.enter(State.FAILED, HOSTILE, f"</p><script>document.title='hurt'</script>{HOSTILE}")
    made.source.address = HOSTILE
    await page.eventually(f"{NAMES}.length === 2")
    assert HOSTILE in await page.value(NAMES)
    await page.eventually(f"document.querySelector('.message').textContent.includes({HOSTILE!r})")
    assert await page.value("document.querySelectorAll('article img, article script').length") == 0
    assert "hurt" not in str(await page.value("document.title"))
    assert page.errors == []


async def test_a_daemon_that_goes_away_is_said_and_comes_back(
    page: Page, server: HttpServer, shop: DestinationStatus, handles: dict[str, DestinationHandle]
) -> None:
    await page.eventually(f"{NAMES}.length === 1")
    port = server.port
    await server.close()
    await page.eventually("document.getElementById('away').textContent.startsWith('The daemon does not answer')")
    assert await page.value("document.body.classList.contains('stale')")
    await keep(page, "away")
    again = HttpServer(("127.0.0.1", port), Facts(handles, "relay-1"), Options(TOKEN))
    await again.start()
    shop.enter(State.DEGRADED, "retention", "the source may purge the binlog")
    await page.eventually("document.getElementById('away').hidden")
    await page.eventually("document.querySelector('.state strong').textContent === 'DEGRADED · retention'")
    await again.close()


async def click(page: Page, action: str) -> None:
    await page.value(f"document.querySelector('button[data-action={action}]').focus()")
    await page.press("Enter", 13, "\r")
    await page.eventually("document.getElementById('ask').open")


class Refusing(FakeOperator):
    """Refuses a restart."""

    async def restart(self) -> None:
        raise RequestRefused("not now")


@pytest.fixture
def asked(shop: DestinationStatus, handles: dict[str, DestinationHandle]) -> Iterator[Callable[[], list[Any]]]:
    """What the destination was asked, and by whom, as its log says."""
    with capture_logs() as logs:
        handles["shop"] = served(shop, Refusing())
        yield lambda: [(one["event"].removeprefix("an operator asks: "), one["by"]) for one in logs if "by" in one]


async def test_a_command_needs_the_token_and_a_yes(page: Page, asked: Callable[[], list[Any]]) -> None:
    said = "document.getElementById('said').textContent"
    await page.eventually("document.querySelector('button[data-action=pause]')?.disabled")
    await page.value("document.getElementById('token').focus()")
    await page.type("a-wrong-one")
    await page.eventually("!document.querySelector('button[data-action=pause]').disabled")
    await click(page, "pause")
    await page.press("Enter", 13, "\r")  # Cancel has the focus
    await page.eventually("!document.getElementById('ask').open")
    await click(page, "pause")
    await page.value("document.getElementById('yes').click()")
    await page.eventually(f'{said}.includes("need the daemon\'s token")')
    assert asked() == []
    await page.value("document.getElementById('token').select()")
    await page.type(TOKEN)
    await click(page, "pause")
    await page.value("document.getElementById('yes').click()")
    await page.eventually(f"{said} === 'shop: pause is done'")
    await click(page, "restart")
    await page.value("document.getElementById('yes').click()")
    await page.eventually(f"{said}.includes('not now')")
    assert asked() == [("pause", "the status page"), ("restart", "the status page")]


async def test_a_question_that_follows_a_cancelled_one_at_once_is_answered(
    page: Page, asked: Callable[[], list[Any]]
) -> None:
    await page.eventually("document.querySelector('button[data-action=pause]')?.disabled")
    await page.value("document.getElementById('token').focus()")
    await page.type(TOKEN)
    await page.eventually("!document.querySelector('button[data-action=pause]').disabled")
    await click(page, "restart")
    await page.value(
        "document.querySelector('#ask button[value=no]').click(),"
        "document.querySelector('button[data-action=pause]').click()"  # before the browser tells of the first
    )
    await page.value("document.getElementById('yes').click()")
    await page.eventually("document.getElementById('said').textContent === 'shop: pause is done'")
    assert asked() == [("pause", "the status page")]


NODES = "[...document.querySelectorAll('#nodes tr')].map((row) => [...row.cells].map((one) => one.textContent))"


async def test_daemons_that_share_a_destination_are_shown_with_what_they_run_and_whom_they_replace(
    stack: Stack, mysql: Any, schema: str, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    toml = destination_toml(mysql, schema, f'type = "jsonl"\npath = "{tmp_path}/out.jsonl"')
    zookeeper = stack.zookeeper(name="status-page")
    shared = f'[zookeeper]\nhosts = "{zookeeper.hosts}"\nroot = "/{schema}"\nsession_timeout = "8s"'
    one = daemon(shop=toml, settings=shared, node="one").start()
    one.wait_state("shop", "STREAMING")
    two = daemon(shop=toml, settings=shared, node=HOSTILE).start()
    two.wait_state("shop", "STANDBY")

    def row(process: DaemonProcess, runs: str, waits: str, note: str = "") -> list[str]:
        return [process.node, f"127.0.0.1:{process.port}", __version__, runs, waits, note]

    async with opened(stack.chromium().url) as page:
        await page.go(f"http://127.0.0.1:{two.port}/")

        async def shows(state: str, *rows: list[str]) -> None:
            await page.eventually(f"document.querySelector('.state strong')?.textContent.startsWith({state!r})")
            wanted = json.dumps(sorted(rows), separators=(",", ":"))
            await page.eventually(f"JSON.stringify({NODES}) === {json.dumps(wanted)}")

        await shows("STANDBY", row(one, "shop", ""), row(two, "", "shop", "this one"))
        assert f"one (127.0.0.1:{one.port}) (this one stands by)" in await text(page, "dl")
        assert await asyncio.to_thread(one.terminate) == 0
        await shows("STREAMING", row(two, "shop", "", "this one"))
        assert f"{HOSTILE}, epoch " in await text(page, "dl")
        one.start()
        await shows("STREAMING", row(one, "", "shop"), row(two, "shop", "", "this one"))
        assert await page.value("document.querySelectorAll('#nodes *:not(tr):not(td)').length") == 0
        assert await page.value("document.title") == f"headrace {HOSTILE}"
        await page.value(
            "globalThis.wasAway = false; const away = document.getElementById('away');"
            "new MutationObserver(() => wasAway ||= !away.hidden).observe(away, {attributes: true}); true"
        )
        zookeeper.kill()
        await page.eventually("document.getElementById('unseen').textContent.includes('ZooKeeper')")
        await shows("STALLED", row(one, "", "shop"), row(two, "shop", "", "this one"))
        assert not await page.value("wasAway"), "the daemon answers all the while"
        assert page.errors == []
