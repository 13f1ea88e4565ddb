"""The consumer's parts without a broker: acknowledgements, batches, headers of dead letters, ids, waits, the status."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from headrace_consume.applying import Applier
from headrace_consume.dead_letters import facts_of
from headrace_consume.message import Message, dead_headers, resent_headers
from headrace_consume.session import AckWindow, Backoff
from headrace_consume.settings import Settings
from headrace_consume.status import COUNTS, GAUGES, ConsumeMetrics, State, Status
from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter, Rejected, Tally
from headrace_documents.errors import BulkError
from headrace_documents.http import SILENT, HttpServer
from headrace_documents.newest import Newest
from tests.canal_messages import START, change, row
from tests.clock import Clock

SETTINGS = Settings.model_validate(
    {
        "rabbitmq": {"hosts": ["h:1"], "user": "u", "password": "p", "queue": "q"},
        "elasticsearch": {"hosts": ["http://h:1"]},
    }
)


def message(body: bytes = b"", tag: int = 1, **headers: Any) -> Message:
    return Message(tag, body, "x", "k", {name.replace("_", "-"): value for name, value in headers.items()})


def test_what_is_settled_in_order_is_acknowledged_at_once() -> None:
    window = AckWindow()
    for tag in range(1, 6):
        window.open(tag)
    assert window.settle([3, 1, 2]) == (3, [])
    assert window.settle([5]) == (0, [5])
    assert window.settle([4]) == (4, [])
    assert len(window) == 0


def test_nothing_is_acknowledged_that_is_not_settled() -> None:
    """Whatever the order: each tag is acknowledged once, and never by the way while it is open."""
    chance = random.Random(5)
    for _ in range(300):
        window, unsettled, acknowledged = AckWindow(), list(range(1, 40)), set[int]()
        for tag in unsettled:
            window.open(tag)
        settled = set[int]()
        while unsettled:
            batch = chance.sample(unsettled, min(len(unsettled), chance.randrange(1, 9)))
            unsettled = [tag for tag in unsettled if tag not in batch]
            settled |= set(batch)
            up_to, single = window.settle([*batch, batch[0]])
            fresh = {tag for tag in range(1, up_to + 1) if tag not in acknowledged}
            assert fresh.isdisjoint(single)
            assert fresh | set(single) <= settled
            acknowledged |= fresh | set(single)
            assert acknowledged == settled


class FakeIndexes:
    """Each is fit to be written to, and no table was emptied."""

    def unfit(self, index: str, owner: tuple[str, ...]) -> str:
        return ""

    def truncated(self, index: str) -> dict[str, int]:
        return {}


class FakeWriter:
    """Takes what `refuses` does not name; remembers what it was given."""

    cluster, indexes = None, FakeIndexes()

    def __init__(self, *refuses: int, fails: bool = False) -> None:
        self.tally = Tally()
        self.given: list[list[Action]] = []
        self.refuses = set(refuses)
        self.fails = fails

    def write(self, actions: list[Action]) -> list[Rejected]:
        if self.fails:
            raise BulkError("away")
        self.given.append(actions)
        return [
            Rejected(number, "no") for number, action in enumerate(actions) if action.version - START in self.refuses
        ]


def applier(writer: FakeWriter) -> Applier:
    return Applier(SETTINGS, cast(BulkWriter, writer))


def test_each_message_of_a_batch_ends_in_one_place() -> None:
    writer = FakeWriter(30)
    ddl = change("t", START, "ALTER", isDdl=True, data=None, pkNames=None)
    batch = [
        message(change("t", START + 10, "INSERT", row(1))),
        message(b"garbage"),
        message(change("t", START + 30, "UPDATE", row(1), old=[{}])),
        message(ddl),
        message(change("t", START + 40, "INSERT", row(2), row(3))),
    ]
    worker = applier(writer)
    outcome = worker.apply(batch)
    assert outcome.done == [batch[0], batch[3], batch[4]]
    assert outcome.failed == [batch[1], batch[2]]
    assert batch[1].reason.startswith("not JSON")
    assert batch[2].reason == "Elasticsearch refuses row 0: no"
    assert (worker.rows, worker.ignored) == (3, 1)
    assert [[(action.id, action.version - START) for action in given] for given in writer.given] == [
        [("1", 30), ("2", 40), ("3", 41)],
        # The older change was not written, because the newer one was to be: now it has to be.
        [("1", 10)],
    ]


def test_an_older_change_after_a_newer_one_is_done_together_with_it() -> None:
    writer = FakeWriter()
    batch = [
        message(change("t", START + 30, "DELETE", row(1))),
        message(change("t", START + 10, "INSERT", row(1))),
    ]
    assert applier(writer).apply(batch).done == batch
    assert [action.body for action in writer.given[0]] == [None]


def test_no_message_is_to_blame_when_elasticsearch_is_away() -> None:
    worker = applier(FakeWriter(fails=True))
    with pytest.raises(BulkError):
        worker.apply([message(change("t", START, "INSERT", row(1))), message(b"garbage")])
    assert (worker.rows, worker.ignored) == (0, 0)


def test_after_a_refused_change_the_next_older_one_is_written() -> None:
    newest: Newest[str] = Newest()
    for version, body, message in ((5, {}, "a"), (4, {}, "b"), (6, None, "d"), (6, {}, "e"), (3, {}, "f")):
        newest.add(Action("i", "1", START + version, body, 0), message)
    newest.add(Action("i", "2", START + 1, {}, 0), "other")
    assert len(newest) == 2
    writer = FakeWriter(6, 5)
    refused = newest.write(cast(BulkWriter, writer))
    assert [one.message for one in refused] == ["e", "d", "a"]
    assert [[one.version - START for one in given] for given in writer.given] == [[6, 1], [6], [5], [4]]
    assert len(newest) == 0


def test_a_dead_letter_keeps_its_first_time_and_position_through_resends() -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    sent = message(b"v", headrace_id="a#1")
    sent.attempts, sent.reason = 4, "why " * 1000
    headers = dead_headers(sent, "q", first)
    assert len(headers["headrace-dead-reason"]) == 1000
    again = Message(9, b"v", "", "q", resent_headers(headers, 1))
    again.attempts, again.reason = 4, "still"
    later = dead_headers(again, "q", datetime(2026, 1, 2, tzinfo=UTC))
    assert later == {
        "headrace-id": "a#1",
        "headrace-dead-reason": "still",
        "headrace-dead-attempts": 8,
        "headrace-dead-resends": 1,
        "headrace-dead-first": "2026-01-01T00:00:00+00:00",
        "headrace-dead-last": "2026-01-02T00:00:00+00:00",
        "headrace-dead-exchange": "x",
        "headrace-dead-routing-key": "k",
        "headrace-dead-queue": "q",
    }
    reported = facts_of(Message(9, b"\xff", "", "q", later), "NEEDS_OPERATOR").page()
    assert (reported["id"], reported["attempts"], reported["resends"], reported["bytes"]) == ("a#1", 8, 1, 1)
    assert json.dumps(reported)


@pytest.mark.parametrize("value", [-1, True, "7", None, 2.5])
def test_headers_of_others_are_not_trusted(value: object) -> None:
    assert message(headrace_dead_resends=value).resends == 0


def test_identity_is_the_id_with_the_position_because_ids_begin_again_after_a_reset() -> None:
    assert message(headrace_id="a:1#1", headrace_pos="7").identity == "a:1#1@7"
    assert message(headrace_id=b"a:1#1", headrace_pos="8").identity == "a:1#1@8"
    assert message().identity == ""
    other = message()
    other.message_id = "m"
    assert (other.id, other.identity) == ("m", "m@")


def test_waits_grow_up_to_their_limit_and_begin_again() -> None:
    backoff = Backoff(1.5)
    waits = [backoff.next() for _ in range(6)]
    for wait, most in zip(waits, (0.25, 0.5, 1.0, 1.5, 1.5, 1.5), strict=True):
        assert 0.75 * most <= wait <= most
    backoff.reset()
    assert backoff.next() <= 0.25


def test_pages_say_what_is_away_and_metrics_have_all_counts() -> None:
    clock = Clock()
    status = Status(clock, lambda: 1_700_000_000.0)
    server = HttpServer(("127.0.0.1", 0), status, ConsumeMetrics(status))
    try:
        assert asked(server, "/readyz")[0] == 503
        status.enter(State.RUNNING)
        assert (asked(server, "/readyz")[0], asked(server, "/livez")[0]) == (200, 200)
        status.counts["applied"] += 3
        status.troubles["scan"] = ""
        status.enter(State.WAITING, "elasticsearch", "no answer")
        code, body = asked(server, "/health")
        page = json.loads(body)
        assert (code, page["state"], page["applied"], page["troubles"]) == (503, "WAITING", 3, {})
        assert page["causes"] == [{"system": "elasticsearch", "cause": "no answer", "seconds": 0.0}]
        clock.now += SILENT
        assert asked(server, "/livez")[0] == 503
        status.enter(State.STOPPING)
        status.enter(State.RUNNING)  # of a batch that ends meanwhile
        assert json.loads(asked(server, "/health")[1])["state"] == "STOPPING"
        metrics = asked(server, "/metrics")[1].decode()
        assert "headrace_consume_applied_total 3.0" in metrics
        assert all(f"headrace_consume_{name}" in metrics for name in (*COUNTS, *GAUGES))
    finally:
        server.close()


def asked(server: HttpServer, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
