"""Health and metrics over a real socket."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from unittest.mock import Mock

import aiohttp
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from structlog.testing import capture_logs

from headrace.cluster.cluster import Cluster
from headrace.destination.handle import DestinationHandle
from headrace.destination.lag import Lag
from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError, LostKind
from headrace.http import hosts as hosts_module
from headrace.http import metrics as metrics_module
from headrace.http import server as server_module
from headrace.http.facts import WINDOW, Facts, LoopDelay
from headrace.http.hosts import NAMES_LOGGED, Hosts, machine_names
from headrace.http.metrics import Metrics
from headrace.http.server import HttpError, HttpServer
from headrace.lease import Lease
from headrace.model import Position, State
from headrace.ports.lock import ClusterCounts
from headrace.ports.measures import Measure
from headrace.settings.daemon import HttpSettings
from tests.handles import handles_of


@pytest.fixture
def statuses() -> dict[str, DestinationStatus]:
    return {"shop": DestinationStatus("shop"), "stock": DestinationStatus("stock")}


@pytest.fixture(autouse=True)
def at_each_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """/metrics is what is so now, not what was given to another one a moment ago."""
    monkeypatch.setattr(metrics_module, "SHARED", 0.0)


@pytest.fixture
async def url(statuses: dict[str, DestinationStatus]) -> AsyncIterator[str]:
    server = HttpServer(("127.0.0.1", 0), Facts(handles_of(statuses), "relay-1"))
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.close()
    await server.close()


async def get(url: str) -> tuple[int, str, dict[str, object] | str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        kind = answer.content_type
        return answer.status, kind, await (answer.json() if kind == "application/json" else answer.text())


@pytest.mark.parametrize("state", list(State))
async def test_one_unhealthy_destination_makes_503(
    url: str, statuses: dict[str, DestinationStatus], state: State
) -> None:
    statuses["shop"].enter(State.STREAMING)
    statuses["stock"].enter(state, "why", "a sentence")
    code, kind, body = await get(url + "/health")
    healthy = state in {State.STANDBY, State.STREAMING, State.DEGRADED, State.SNAPSHOTTING, State.PAUSED}
    assert (code, kind) == (200 if healthy else 503, "application/json")
    assert isinstance(body, dict)
    assert body["status"] == ("ok" if healthy else "failing")
    assert body["node"] == "relay-1"
    stock = body["destinations"]["stock"]  # type: ignore[index]
    text = "a sentence" if healthy else "a sentence -> see docs/troubleshooting.md#why"
    assert (stock["state"], stock["reason"], stock["message"]) == (state.value, "why", text)
    assert (await get(url + "/health/shop"))[0] == 200
    assert (await get(url + "/health/stock"))[0] == code


async def test_a_load_balancer_finds_the_daemon_that_runs_a_destination(
    url: str, statuses: dict[str, DestinationStatus]
) -> None:
    shop = statuses["shop"]
    shop.enter(State.STANDBY)
    shop.holding.holder = "relay-2 (10.0.0.2:9180)"
    code, _, body = await get(url + "/readyz?destination=shop")
    assert isinstance(body, dict)
    assert (code, body["ready"], body["role"], body["holder"]) == (503, False, "STANDBY", "relay-2 (10.0.0.2:9180)")
    shop.enter(State.STREAMING)
    shop.holding.role = "ACTIVE"
    assert (await get(url + "/readyz?destination=shop"))[0] == 200
    shop.enter(State.STALLED, "lock")
    assert (await get(url + "/readyz?destination=shop"))[0] == 503
    assert (await get(url + "/readyz?destination=nothing"))[0] == 404
    assert (await get(url + "/readyz"))[0] == 503
    for status in statuses.values():
        status.enter(State.STANDBY)
    assert (await get(url + "/readyz"))[0] == 200


async def test_a_lease_is_shown_while_it_can_lapse(url: str, statuses: dict[str, DestinationStatus]) -> None:
    statuses["shop"].holding.lease, statuses["stock"].holding.lease = Lease(10.0, monotonic=lambda: 100.0), Lease()
    statuses["shop"].holding.lease.prove(97.0)
    _, _, body = await get(url + "/health")
    assert isinstance(body, dict)
    destinations: dict[str, dict[str, float | None]] = body["destinations"]  # type: ignore[assignment]
    assert destinations["shop"]["lease_seconds"] == 7.0
    assert destinations["stock"]["lease_seconds"] is None
    text = str((await get(url + "/metrics"))[2])
    assert 'headrace_lease_remaining_seconds{destination="shop"}' in text
    assert 'headrace_lease_remaining_seconds{destination="stock"}' not in text


async def test_the_facts_of_a_destination(url: str, statuses: dict[str, DestinationStatus]) -> None:
    shop = statuses["shop"]
    shop.stored.position = Position("uuid", "mysql-bin.000007", 1234, last_pos=(1 << 62) + 1)
    shop.published.rows, shop.holding.epoch = 42, 3
    shop.lag = Lag(lambda: 1_000_007.25)
    shop.lag.confirmed(1_000_000_000_000)
    shop.lag.read(999_999_000_000)
    shop.note_error(HeadraceError("source: 连接断开"))
    shop.last_error_at_us = 1_700_000_000_000_001
    shop.published.oldest_at = time.monotonic() - 5
    _, _, body = await get(url + "/health/shop")
    assert isinstance(body, dict)
    assert body["position"]["file"] == "mysql-bin.000007"  # type: ignore[index]
    assert body["position"]["last_pos"] == str((1 << 62) + 1)  # type: ignore[index]
    assert (body["rows"], body["epoch"]) == (42, 3)
    assert (body["lag_seconds"], body["reading_lag_seconds"]) == (7.25, 7.25)
    assert body["last_error"] == "source: 连接断开 -> see docs/troubleshooting.md#error"
    assert body["last_error_at"] == "2023-11-14T22:13:20.000001Z"
    assert 5 <= float(str(body["oldest_unconfirmed_seconds"])) < 60
    assert body["last_checkpoint_seconds"] is None
    code, _, body = await get(url + "/health/nosuch")
    assert code == 404
    assert isinstance(body, dict)
    assert body["destinations"] == ["shop", "stock"]


async def test_metrics_are_prometheus_text(url: str, statuses: dict[str, DestinationStatus]) -> None:
    shop = statuses["shop"]
    shop.enter(State.STREAMING)
    shop.stored.position = Position("uuid", "mysql-bin.000007", 1234, commit_time_us=1_500_000)
    shop.published.rows = 42
    code, kind, text = await get(url + "/metrics")
    assert (code, kind) == (200, "text/plain")
    assert isinstance(text, str)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["headrace_rows_total", "shop"] == 42
    assert samples["headrace_state", "shop", "STREAMING"] == 1
    assert sum(value for key, value in samples.items() if key[:2] == ("headrace_state", "shop")) == 1
    assert samples["headrace_healthy", "stock"] == 0
    assert samples["headrace_position_commit_timestamp_seconds", "shop"] == 1.5
    assert ("headrace_last_checkpoint_age_seconds", "shop") not in samples
    assert samples["headrace_oldest_unconfirmed_seconds", "shop"] == 0
    assert samples["process_resident_memory_bytes",] > 1e6
    assert ("headrace_loop_delay_seconds",) in samples


async def test_refusals_of_zookeeper_are_counted_by_destination_and_shown_only_with_zookeeper(
    url: str, statuses: dict[str, DestinationStatus]
) -> None:
    assert "headrace_fenced_writes_total{" not in str((await get(url + "/metrics"))[2])
    counts = ClusterCounts("zookeeper", sessions=1, suspensions=2, attempts=3)
    cluster = Mock(spec=Cluster, counts=counts)
    server = HttpServer(("127.0.0.1", 0), Facts(handles_of(statuses), "relay-1", cluster=cluster))
    await server.start()
    counts.fenced_writes["shop"] = 4
    lines = str((await get(f"http://127.0.0.1:{server.port}/metrics"))[2]).splitlines()
    await server.close()
    assert 'headrace_fenced_writes_total{destination="shop"} 4.0' in lines
    assert 'headrace_fenced_writes_total{destination="stock"} 0.0' in lines
    assert "headrace_zookeeper_sessions_total 1.0" in lines
    assert "headrace_zookeeper_suspensions_total 2.0" in lines
    assert "headrace_lock_attempts_total 3.0" in lines


async def test_what_adapters_measure_is_among_the_metrics_of_its_destination() -> None:
    handles = handles_of({name: DestinationStatus(name) for name in ("shop", "stock", "idle")})
    sold = Measure("toys_sold", "Sold.", 7, "counter")
    handles["shop"].measures = lambda: [Measure("toys_on_shelf", "Toys.", 3), sold]
    handles["stock"].measures = lambda: [Measure("toys_on_shelf", "Toys.", 5), Measure("queue_bytes", "Mine.", 9)]
    handles["broken"] = DestinationHandle(DestinationStatus("broken"))
    handles["broken"].measures = lambda: [Measure("toys_on_shelf", "Toys.", 1 // 0)]
    text = (await Metrics(Facts(handles, "relay-1")).text()).decode()
    assert [line for line in text.splitlines() if line.startswith("headrace_toys")] == [
        'headrace_toys_on_shelf{destination="shop"} 3.0',
        'headrace_toys_on_shelf{destination="stock"} 5.0',
        'headrace_toys_sold_total{destination="shop"} 7.0',
    ]
    assert text.count("# TYPE headrace_queue_bytes gauge") == 1, "what headrace has itself is left out"
    assert 'headrace_queue_bytes{destination="broken"} 0.0' in text


async def test_a_move_of_the_position_is_counted_from_0_on_for_every_reason(
    url: str, statuses: dict[str, DestinationStatus]
) -> None:
    # A counter that begins to exist at 1 has never grown, for Prometheus: the alert would miss the first move.
    reasons = {*LostKind, "diverged"}
    lines = str((await get(url + "/metrics"))[2]).splitlines()
    for reason in reasons:
        assert f'headrace_position_moves_total{{destination="shop",reason="{reason}"}} 0.0' in lines
    assert sum(line.startswith("headrace_position_moves_total{") for line in lines) == 2 * len(reasons)
    statuses["shop"].moves.counts["gtids_purged"] = 1
    lines = str((await get(url + "/metrics"))[2]).splitlines()
    assert 'headrace_position_moves_total{destination="shop",reason="gtids_purged"} 1.0' in lines
    assert sum(line.startswith("headrace_position_moves_total{") for line in lines) == 2 * len(reasons)


async def test_each_trouble_is_a_metric_from_0_on(url: str, statuses: dict[str, DestinationStatus]) -> None:
    statuses["shop"].trouble("unlogged_rows", "rows came without events")
    lines = str((await get(url + "/metrics"))[2]).splitlines()
    shop = [line for line in lines if line.startswith('headrace_trouble{destination="shop"')]
    assert 'headrace_trouble{destination="shop",reason="unlogged_rows"} 1.0' in shop
    assert 'headrace_trouble{destination="stock",reason="unlogged_rows"} 0.0' in lines
    assert (len(shop), sum(line.endswith(" 0.0") for line in shop)) == (15, 14)


async def test_readiness_of_a_standby_is_a_metric_only_while_it_is_a_standby(
    url: str, statuses: dict[str, DestinationStatus]
) -> None:
    statuses["shop"].enter(State.STANDBY, "lock", "run by relay-2")
    statuses["stock"].enter(State.STREAMING)
    statuses["shop"].holding.problems = ["the account was refused"]
    text = str((await get(url + "/metrics"))[2])
    assert 'headrace_standby_ready{destination="shop"} 0.0' in text
    assert 'headrace_standby_ready{destination="stock"}' not in text
    statuses["shop"].holding.problems = []
    assert 'headrace_standby_ready{destination="shop"} 1.0' in str((await get(url + "/metrics"))[2])


async def test_a_port_in_use_is_a_sentence(statuses: dict[str, DestinationStatus]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HttpError, match=rf"can't listen on 127\.0\.0\.1:{port}: address already in use"):
            await HttpServer(("127.0.0.1", port), Facts(handles_of(statuses), "relay-1")).start()


async def test_a_foreign_address_is_a_sentence(statuses: dict[str, DestinationStatus]) -> None:
    with pytest.raises(HttpError, match=r"can't listen on 192\.0\.2\.1:9180: .*\[http\] listen"):
        await HttpServer(("192.0.2.1", 9180), Facts(handles_of(statuses), "relay-1")).start()


def test_the_largest_delay_is_forgotten_after_a_minute() -> None:
    delay = LoopDelay()
    delay.note(0.5, 100.0)
    delay.note(-0.1, 101.0)
    assert (delay.last, delay.largest) == (0.0, 0.5)
    delay.note(0.1, 100.1 + WINDOW)
    assert (delay.last, delay.largest) == (0.1, 0.1)


async def test_what_was_refused_of_the_configuration_is_shown_and_does_not_make_503(
    statuses: dict[str, DestinationStatus],
) -> None:
    for status in statuses.values():
        status.enter(State.STREAMING)
    errors = ["destinations/shop.toml: source.colour: unknown key"]
    server = HttpServer(("127.0.0.1", 0), Facts(handles_of(statuses), "relay-1", errors))
    await server.start()
    url = f"http://127.0.0.1:{server.port}"
    code, _, body = await get(url + "/health")
    assert isinstance(body, dict)
    assert (code, body["config_errors"]) == (200, errors)
    assert "headrace_config_errors 1.0\n" in str((await get(url + "/metrics"))[2])
    errors.clear()
    assert "headrace_config_errors 0.0\n" in str((await get(url + "/metrics"))[2])
    await server.close()


async def test_who_has_not_proved_his_lock_is_not_ready_and_who_has_lost_it_not_active(
    url: str, statuses: dict[str, DestinationStatus]
) -> None:
    shop = statuses["shop"]
    shop.enter(State.STREAMING)
    shop.holding.role, shop.holding.lease = "ACTIVE", Lease(10.0)
    assert (await get(url + "/readyz?destination=shop"))[0] == 503
    assert 'headrace_active{destination="shop"} 1.0' in str((await get(url + "/metrics"))[2])
    shop.holding.lease.prove(time.monotonic())
    assert (await get(url + "/readyz?destination=shop"))[0] == 200
    shop.holding.lease.lose("gone")
    assert (await get(url + "/readyz?destination=shop"))[0] == 503
    assert 'headrace_active{destination="shop"} 0.0' in str((await get(url + "/metrics"))[2])


async def asked(url: str, host: str | None, *, path: str = "/health", method: str = "GET") -> tuple[int, bytes]:
    """Status and body of one request with this header; None: without."""
    header = f"host: {host}\r\n" if host is not None else ""
    version = "1.1" if host is not None else "1.0"
    said = f"{method} {path} HTTP/{version}\r\n{header}connection: close\r\n\r\n"
    reader, writer = await opened(url, said.encode())
    async with asyncio.timeout(5):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/livez", "/api/v1/events", "/api/v1/openapi.json"])
async def test_a_page_of_another_site_reads_nothing_by_a_name_of_its_own(url: str, path: str) -> None:
    code, body = await asked(url, "rebinding.example:9180", path=path)
    assert code == 421
    assert orjson.loads(body) == {
        "error": "this daemon does not answer for the host 'rebinding.example:9180': name it in [http] allowed_hosts",
        "help": "docs/troubleshooting.md#when-the-answer-is-421",
    }


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9180", "[::1]:9180", "10.0.0.7:1", "localhost", "LocalHost.:1", "shop.localhost"]
)
async def test_requests_by_ip_address_are_answered(url: str, host: str) -> None:
    assert (await asked(url, host, path="/livez"))[0] == 200


@pytest.mark.parametrize("host", [None, "", " "])
async def test_who_names_no_host_is_no_browser(url: str, host: str | None) -> None:
    assert (await asked(url, host, path="/livez"))[0] == 200


async def test_the_machine_s_own_name_is_ours(
    statuses: dict[str, DestinationStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolved(host: object, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host != "relay-7":
            return found(host, *_, **__)
        return [(2, 1, 6, name, ("10.0.0.7", 0)) for name in ("relay-7.example.com", "", "other.example.net")]

    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "gethostname", lambda: "relay-7")
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    server = HttpServer(("127.0.0.1", 0), Facts(handles_of(statuses), "relay-1"))
    await server.start()
    url = f"http://127.0.0.1:{server.port}"
    got = [
        (await asked(url, host, path="/livez"))[0]
        for host in ("relay-7:9180", "Relay-7.example.com", "other.example.net", "relay-7.evil.example")
    ]
    await server.close()
    assert got == [200, 200, 421, 421]


async def test_a_resolver_that_does_not_answer_delays_the_start_by_little(
    statuses: dict[str, DestinationStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = asyncio.Event()

    async def resolve(*_: object, **__: object) -> list[object]:
        await away.wait()
        return []

    monkeypatch.setattr(hosts_module, "RESOLVER_LIMIT", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await machine_names() == {socket.gethostname()}


def test_a_refused_host_name_is_logged_once_and_only_for_the_first_names() -> None:
    hosts = Hosts("", [])
    with capture_logs() as reported:
        for host in [b"shop.example", b"shop.example", *(b"h%d.example" % i for i in range(1000))]:
            assert hosts.refusal({"headers": [(b"host", host)]})
        assert hosts.refusal({"headers": [(b"host", b"x" * 5000)]})
    assert reported[0]["host"] == "'shop.example'"
    assert "allowed_hosts" in reported[0]["remedy"]
    assert [one.get("host") for one in reported].count("'shop.example'") == 1
    assert len(reported) == NAMES_LOGGED
    assert "further names are not logged" in reported[-1]["event"]


async def test_a_host_that_is_hostile_is_shown_as_text(url: str) -> None:
    code, body = await asked(url, "<script>\x9b2J'\"", method="POST")
    assert (code, body.isascii()) == (421, True)


HOSTS = Hosts("relay-1", ["shop.example.com", "*.svc.cluster.local"])


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("relay-1:9180", True),
        ("RELAY-1.", True),
        ("shop.example.com", True),
        ("headrace.shop.svc.cluster.local:9180", True),
        ("a.shop.example.com", False),
        ("svc.cluster.local", False),
        (".svc.cluster.local", False),
        ("evilsvc.cluster.local", False),
        ("*.svc.cluster.local.evil.example", False),
        ("relay-1.evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:80:80", False),
        ("0x7f.1", False),
        ("::1", False),
        ("[::1", False),
        ("[127.0.0.1]", False),
        ("[fe80::1]", True),
        ("", True),
        (":9180", False),
        ("shop.localhost:9180", True),
        (".localhost", False),
        ("shop.localhost.evil.example", False),
        ("notlocalhost", False),
        ("user@127.0.0.1", False),
    ],
)
def test_names_are_allowed_by_the_configuration_alone(host: str, allowed: bool) -> None:
    assert HOSTS.allows(host) is allowed
    assert Hosts("", ["*"]).allows(host)


@pytest.mark.parametrize("value", ["", "a:9180", "http://a", "*.", "a.*", "*a", "**", ".a", "a b", "[::1]"])
def test_what_is_no_name_of_a_host_is_refused_at_the_start(value: str) -> None:
    with pytest.raises(ValidationError, match="is no host name, without a port"):
        HttpSettings(allowed_hosts=[value])


async def opened(url: str, *said: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    for part in said:
        writer.write(part)
        await writer.drain()
    return reader, writer


async def test_a_connection_that_brings_no_whole_request_ends(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 0.2)
    for said in (b"", b"GET /livez HTTP/1.1\r\nhost:"):
        reader, writer = await opened(url, said)
        async with asyncio.timeout(3):
            assert await reader.read() == b""
        writer.close()
    reader, writer = await opened(url, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert await reader.readuntil(b"}\n") != b"", "one request was answered"
    writer.write(b"GET /livez HTTP/1.1\r\n")
    async with asyncio.timeout(3):  # less than uvicorn's own time for a connection without a request
        assert await reader.read() == b""
    writer.close()


async def test_an_answer_that_takes_longer_is_not_cut(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 0.2)
    reader, writer = await opened(url, b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    began, events = time.monotonic(), 0
    async with asyncio.timeout(20):
        while time.monotonic() - began < 1 or events < 2:
            line = await reader.readline()
            assert line
            events += line.startswith(b"data:")
    writer.close()


async def test_so_many_connections_are_held_and_those_beyond_end_at_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS", 5)
    held = [await opened(url) for _ in range(5)]
    reader, beyond = await opened(url)
    with contextlib.suppress(ConnectionResetError):
        async with asyncio.timeout(3):
            assert await reader.read() == b""
    held[0][1].close()
    await held[0][1].wait_closed()
    assert (await get(url + "/livez"))[0] == 200
    for _, writer in (*held, (reader, beyond)):
        writer.close()
