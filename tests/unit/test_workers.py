"""Parts of worker processes: who runs what, the channel, the mirrors of statuses, and what a worker gets."""

from __future__ import annotations

import asyncio
import math
import pickle
import socket
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import pytest

from headrace.cli.check import look_at_processes
from headrace.destination.requests import RequestRefused
from headrace.destination.status import DestinationStatus, RoundTrips
from headrace.errors import HeadraceError, SourceUnreachable
from headrace.http.facts import Facts
from headrace.http.fields import FIELDS
from headrace.http.health import describe, health
from headrace.lease import Lease
from headrace.model import Gap, Position, State, TableRows
from headrace.parking.parking import Waiting
from headrace.pipeline.native_output import NativeUse
from headrace.ports.finding import Level
from headrace.settings.destination import Settings
from headrace.workers import channel as channels
from headrace.workers.assignment import assign
from headrace.workers.channel import Channel, ChannelEnded, ChannelError, packed, receive_now
from headrace.workers.handle import WorkerGone
from headrace.workers.messages import Failure
from headrace.workers.mirror import MirroredLag, facts_of, lose, refresh
from headrace.workers.pool import share
from tests.configured import destination_of


def test_destinations_go_to_the_worker_that_has_the_fewest_in_the_order_of_their_names() -> None:
    assert assign(["c", "a", "b"], {}, 2) == {"a": 1, "b": 2, "c": 1}
    assert assign(["a"], {}, 3) == {"a": 1}
    assert assign([], {"a": 1}, 2) == {}


def test_no_destination_moves_because_others_come_or_go() -> None:
    before = assign("abcd", {}, 2)
    assert before == {"a": 1, "b": 2, "c": 1, "d": 2}
    assert assign("bdx", before, 2) == {"b": 2, "d": 2, "x": 1}
    assert assign("abcdxyz", before, 2) == {**before, "x": 1, "y": 2, "z": 1}


@pytest.fixture
async def pair() -> AsyncIterator[tuple[socket.socket, Channel]]:
    ours, theirs = socket.socketpair()
    made = await Channel.open(theirs)
    yield ours, made
    made.close()
    ours.close()


async def test_messages_come_whole_and_in_order_however_they_are_cut(pair: tuple[socket.socket, Channel]) -> None:
    ours, channel = pair
    sent: list[Any] = [{"a": 1}, "x" * 300_000, None]
    data = b"".join(map(packed, sent))

    async def feed() -> None:
        for at in range(0, len(data), 7919):
            await asyncio.get_running_loop().sock_sendall(ours, data[at : at + 7919])

    ours.setblocking(False)
    feeding = asyncio.create_task(feed())
    assert [await channel.receive() for _ in sent] == sent
    await feeding
    ours.close()
    with pytest.raises(ChannelEnded):
        await channel.receive()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", ChannelEnded),
        (b"\0\0", ChannelEnded),
        (packed("whole")[:-1], ChannelEnded),
        (struct.pack(">I", channels.MOST + 1), ChannelError),
        (struct.pack(">I", 4) + b"nope", ChannelError),
        (struct.pack(">I", 0), ChannelError),
    ],
    ids=["nothing", "half a length", "cut", "too large", "no pickle", "empty"],
)
async def test_what_is_no_message_is_an_error_before_and_on_the_loop(
    data: bytes, kind: type[ChannelError], pair: tuple[socket.socket, Channel]
) -> None:
    ours, channel = pair
    ours.sendall(data)
    ours.close()
    with pytest.raises(kind):
        await channel.receive()
    first, second = socket.socketpair()
    with second:
        with first:
            first.sendall(data)
        with pytest.raises(kind):
            receive_now(second)


def test_reading_before_the_loop_takes_one_message_and_no_byte_of_the_next() -> None:
    first, second = socket.socketpair()
    with first, second:
        first.sendall(packed("one") + packed("two"))
        assert receive_now(second) == "one"
        assert receive_now(second) == "two"


def test_a_message_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MOST", 100)
    with pytest.raises(ChannelError, match="too large"):
        packed("x" * 200)


async def test_what_is_sent_to_an_end_that_is_gone_is_an_error(pair: tuple[socket.socket, Channel]) -> None:
    ours, channel = pair
    ours.close()
    with pytest.raises(ChannelEnded):
        await channel.send("x" * 10_000_000)


def full_status() -> DestinationStatus:
    """One with a value of its own in every field."""
    status = DestinationStatus("shop")
    for number, field in enumerate(fields(status), 1):
        value = getattr(status, field.name)
        if isinstance(value, str) and field.name not in ("name", "state"):
            setattr(status, field.name, f"text {number}")
        elif isinstance(value, int | float) or value is None:
            setattr(status, field.name, number)
        elif value == []:
            setattr(status, field.name, [f"sentence {number}"])
        elif value == {}:
            setattr(status, field.name, {"one": number})
    status.state = State.DEGRADED
    status.position = Position("uuid", "mysql-bin.000007", 4, commit_time_us=5)
    status.gap, status.parked = Gap("operator", "a", "b", at_us=3), Waiting(1, 2, 3, 4)
    status.snapshot = dict.fromkeys(
        ("rows", "rows_left", "rows_per_second", "eta_seconds", "tables_done", "waiting"), 1
    )
    status.search = {"file": "f", "done": 1, "total": 2}
    status.round_trips = RoundTrips()
    status.round_trips.note(0.3)
    status.tables.add(TableRows("shop", "t", 1, 2, 3, 4, 5))
    status.native = NativeUse("it is off", {("shop", "t"): "a reason"})
    status.lag.stored(time.time_ns() // 1000 - 7_000_000)
    status.lease = Lease(30.0, margin=1.5)
    status.lease.prove(time.monotonic())

    async def done(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    status.command = status.operate = done
    return status


async def ask(*given: Any, **more: Any) -> dict[str, Any]:
    return {"given": given, "more": more}


def mirrored(status: DestinationStatus) -> DestinationStatus:
    mirror = DestinationStatus(status.name)
    refresh(mirror, pickle.loads(pickle.dumps(facts_of(status))), ask)
    return mirror


async def test_every_field_of_a_status_carries_over() -> None:
    status = full_status()
    mirror, fresh = mirrored(status), DestinationStatus("shop")
    for field in fields(DestinationStatus):
        there, here = getattr(mirror, field.name), getattr(status, field.name)
        if field.name not in ("name", "lag", "lease", "command", "operate"):
            assert here != getattr(fresh, field.name), f"{field.name} has no value of its own in this test"
            assert there == here, field.name
    assert mirror.lease is not None
    assert status.lease is not None
    assert mirror.lease.deadline == pytest.approx(status.lease.deadline)
    assert (mirror.lease.limited, mirror.lease.margin, mirror.lease.lost) == (True, 1.5, "")
    assert mirror.lag.seconds == pytest.approx(7.0, abs=1)
    assert mirror.operate is not None
    assert mirror.command is not None
    assert await mirror.operate("pause", "me", x=1) == {"given": ("shop", "operate", "pause", "me"), "more": {"x": 1}}
    assert (await mirror.command({}))["given"] == ("shop", "command", {})


def near(value: Any) -> Any:
    """What a little later may differ by what has passed."""
    if isinstance(value, dict):
        return {key: near(one) for key, one in value.items()}
    return pytest.approx(value, abs=2.0) if isinstance(value, float) else value


def test_health_and_metrics_of_a_mirror_are_those_of_the_status() -> None:
    status = full_status()
    mirror = mirrored(status)
    assert describe(mirror) == near(describe(status))
    for field in FIELDS:
        assert field.read(mirror) == near(field.read(status)), field.metric


def test_a_lease_that_is_lost_not_proved_or_without_limit_carries_over() -> None:
    status = DestinationStatus("shop")
    assert mirrored(status).lease is None
    assert mirrored(status).operate is None
    status.lease = Lease()
    assert (lease := mirrored(status).lease) is not None
    assert (lease.limited, lease.remaining) == (False, math.inf)
    status.lease = Lease(10.0)
    assert (lease := mirrored(status).lease) is not None
    assert (lease.limited, lease.remaining) == (True, 0.0)
    status.lease.lose("it is gone")
    assert (lease := mirrored(status).lease) is not None
    assert lease.lost == "it is gone"


def test_facts_without_the_tables_leave_them_as_they_are() -> None:
    mirror = mirrored(full_status())
    facts = facts_of(DestinationStatus("shop"))
    del facts["tables"]
    refresh(mirror, facts, ask)
    assert [one.table for one in mirror.tables.all()] == ["t"]
    assert mirror.rows == 0


@pytest.mark.parametrize("state", [*State])
@pytest.mark.parametrize("ended", [True, False])
def test_what_nothing_is_heard_of_never_looks_well(state: State, ended: bool) -> None:
    status = full_status()
    status.state = state
    mirror = mirrored(status)
    lose(mirror, WorkerGone("worker process 1 has ended", remedy="look"), ask, ended=ended)
    code, page = health(Facts({"shop": mirror}, "node"))
    shown = page["destinations"]["shop"]
    assert (code, shown["healthy"], shown["reason"]) == (503, False, "worker")
    assert "worker process 1 has ended -> look" in shown["message"]
    assert "docs/troubleshooting.md#worker" in shown["message"]
    assert shown["rows"] == status.rows, "counters stay"
    assert (shown["role"] == "STANDBY") == ended
    assert isinstance(mirror.lag, MirroredLag)
    assert mirror.lag.old
    refresh(mirror, facts_of(full_status()), ask)
    assert mirror.state is State.DEGRADED, "the next word of the worker counts again"


@pytest.mark.parametrize(
    "error",
    [
        RequestRefused("not now", remedy="wait"),
        SourceUnreachable("can't be reached", remedy="look at it"),
        HeadraceError("no", retriable=False),
    ],
)
def test_an_error_comes_back_as_far_as_the_api_tells_errors_apart(error: HeadraceError) -> None:
    made = pickle.loads(pickle.dumps(Failure.of(error))).error()
    assert isinstance(made, HeadraceError)
    assert isinstance(made, RequestRefused) == isinstance(error, RequestRefused)
    assert (str(made), made.help, made.retriable) == (str(error), error.help, error.retriable)


def test_an_unexpected_error_tells_its_kind_alone() -> None:
    made = Failure.of(ValueError("a password")).error()
    assert not isinstance(made, HeadraceError)
    assert "ValueError" in str(made)
    assert "password" not in str(made)


def test_a_worker_gets_its_share_and_no_secret_of_http() -> None:
    raw = {"source": {"host": "h", "user": "u", "password": "p"}, "sink": {"type": "null"}}
    shop = destination_of({"name": "shop", **raw})
    main = {
        "daemon": {"processes": 3, "queue_bytes": 4000, "max_destinations": 4},
        "http": {"token": "a-token-of-the-tests", "tables": 7},
        "destinations": {"shop": shop, "other": shop.model_copy(update={"name": "other"})},
    }
    settings = Settings.model_validate(main)
    mine = pickle.loads(pickle.dumps(share(settings, {"shop": shop})))
    assert mine.destinations == {"shop": shop}, "equal on both sides, or a reload would begin all anew"
    assert (mine.daemon.queue_bytes, mine.daemon.max_destinations, mine.daemon.processes) == (1334, 2, 1)
    assert (mine.http.address, mine.http.tables, mine.http.token.get_secret_value()) == (None, 7, "")
    unlimited = settings.model_copy(update={"daemon": settings.daemon.model_copy(update={"max_destinations": 0})})
    assert share(unlimited, {}).daemon.max_destinations == 0


@pytest.mark.parametrize(("processes", "warned"), [(1, False), (2, False), (3, True)])
def test_check_warns_of_processes_that_would_have_nothing_to_run(processes: int, warned: bool) -> None:
    raw = {"source": {"host": "h", "user": "u", "password": "p"}, "sink": {"type": "null"}}
    both = {name: destination_of({"name": name, **raw}) for name in ("a", "b")}
    settings = Settings.model_validate({"daemon": {"processes": processes}, "destinations": both})
    assert [one.level for one in look_at_processes(settings)] == ([Level.WARNING] if warned else [])
