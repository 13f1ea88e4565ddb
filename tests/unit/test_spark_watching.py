"""The Spark consumer watched: its status out of made-up events, its metrics, its outages, and the files of deploy/."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from headrace_common.systemd import Notifier
from headrace_documents.http import SILENT, HttpError, HttpServer
from headrace_spark.cli.status import rows
from headrace_spark.errors import RefusedError
from headrace_spark.query.pace import Pace
from headrace_spark.query.watching import FED_FOR, KafkaWatch, Listener, Monitor
from headrace_spark.settings import load_settings
from headrace_spark.source.kafka import offsets_of
from headrace_spark.source.kafka_client import Seen
from headrace_spark.status.counting import MAX_NAMES, OTHERS, Counts
from headrace_spark.status.metrics import SparkMetrics
from headrace_spark.status.outages import ELASTICSEARCH, KAFKA, QUERY, REPORT_AFTER, Outages
from headrace_spark.status.problems import elasticsearch_cause, kafka_cause, problem_of
from headrace_spark.status.status import State, Status
from headrace_spark.status.task_reports import LOGGER, receiver
from tests.clock import Clock

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
HOSTS = ["http://127.0.0.1:9200"]


def counts(messages: int, **more: int) -> Counts:
    made = Counts()
    made.numbers.update({"messages": messages, "rows": 2 * messages, "bytes": 100 * messages, **more})
    made.tables["shop.a"] += 2 * messages
    made.indexes["shop.a", "indexed"] += 2 * messages
    made.bulk.observe(0.2)
    made.delay.observe(1.5, messages)
    return made


def progress(end: dict[str, dict[str, int]]) -> QueryProgressEvent:
    text = {
        "id": "6e2ca0a2-6a3b-4a4f-9e5c-3a4e4c4fbb2c",
        "runId": "6e2ca0a2-6a3b-4a4f-9e5c-3a4e4c4fbb2d",
        "name": "q",
        "timestamp": "2026-11-22T10:00:00.000Z",
        "batchId": 3,
        "batchDuration": 10,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "observedMetrics": {},
        "numInputRows": 5,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "sink": {"description": "s", "numOutputRows": -1, "metrics": {}},
        "sources": [
            {
                "description": "KafkaV2",
                "startOffset": "{}",
                "endOffset": json.dumps(end),
                "metrics": {},
                "latestOffset": json.dumps(end),
                "numInputRows": 5,
                "inputRowsPerSecond": 1.0,
                "processedRowsPerSecond": 1.0,
            }
        ],
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(text))


def test_a_load_from_its_start_to_its_end(status: Status, clock: Clock) -> None:
    listener = Listener(status)
    assert status.state is State.STARTING
    status.limit = 100
    listener.onQueryStarted(Mock())
    assert (status.state, status.lag, status.eta_seconds) == (State.RUNNING, None, None)
    status.ends({("shop", 0): 1000, ("shop", 1): 50})
    listener.onQueryProgress(progress({"shop": {"0": 100, "1": 50}}))
    status.oldest(int((clock.now + 1_700_000_000 - 30) * 1000))
    assert (status.state, status.lag, status.lag_seconds) == (State.CATCHING_UP, 900, 30.0)
    clock.now += 10
    status.batch_done(4, 10.0, counts(100))
    assert status.rates() == (10.0, 20.0)
    page = status.page()
    assert page["lag"]["rows"] == 1800
    assert page["lag"]["caught_up_in_seconds"] == 90
    assert page["tables"] == {"shop.a": 200}
    assert page["indexes"] == {"shop.a": {"indexed": 200}}
    assert any("900 messages" in text for _, text in rows(page))
    listener.onQueryProgress(progress({"shop": {"0": 1000}}))
    assert (status.state, status.lag, status.lag_seconds) == (State.RUNNING, 0, 0.0)
    listener.onQueryTerminated(Mock())
    assert status.state is State.STARTING


def test_names_are_bounded() -> None:
    total = Counts()
    for number in range(MAX_NAMES + 50):
        one = Counts()
        one.tables[f"t{number}"] += 1
        one.indexes[f"i{number}", "indexed"] += 1
        total.add(one)
    assert len(total.tables) == len(total.indexes) == MAX_NAMES + 1
    assert total.tables[OTHERS] == total.indexes[OTHERS, "indexed"] == 50


def test_an_outage_is_reported_once_then_every_minute_then_at_its_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[tuple[str, dict[str, Any]]] = []
    fake = Mock(warning=lambda event, **fields: reported.append((event, fields)))
    monkeypatch.setattr("headrace_spark.status.outages.log", fake)
    outages = Outages(clock)
    for second in range(150):
        for task in ("task 1", "task 2"):
            outages.waiting(ELASTICSEARCH, task, "it does not answer", waits="5 documents", seconds=float(second))
        outages.tick()
        clock.now += 1
    assert [event for event, _ in reported] == ["outage begins", "outage goes on", "outage goes on"]
    assert [fields["seconds"] for _, fields in reported] == [REPORT_AFTER, 62, 122]
    outages.over(ELASTICSEARCH, "task 1")
    outages.tick()
    assert len(reported) == 3, "another task waits still"
    outages.over(ELASTICSEARCH, "task 2")
    outages.tick()
    assert reported[-1] == ("outage ends", {"system": ELASTICSEARCH, "seconds": 150, "tries": 300})
    outages.waiting(KAFKA, "watch", "a moment", waits="all")
    outages.over(KAFKA)
    outages.tick()
    assert len(reported) == 4, "what is over at once is no outage"


def test_reports_of_tasks(status: Status) -> None:
    take = receiver(status.outages, status.sign)
    status.query_runs(True)
    assert not take({"logger": "headrace_spark.transform.worker", "event": "dead letter"})
    assert take({"logger": LOGGER, "event": "waiting", "source": "task 1", "cause": "c", "waits": "w", "seconds": 3})
    assert status.state is State.WAITING
    assert take({"logger": LOGGER, "event": "progress", "source": "task 1"})
    assert status.state is State.RUNNING
    status.outages.waiting(QUERY, "query", "somebody has to do something", waits="all")
    assert status.state is State.FAILED


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "Elasticsearch refuses to write: 429 cluster_block_exception: index [shop.a] blocked by: [TOO_MANY_REQUESTS"
            "/12/disk usage exceeded flood-stage watermark, index has read-only-allow-delete block];",
            "index shop.a is blocked: flood stage, free disk space",
        ),
        (
            "400 illegal_argument_exception: Number of documents in shard [shop.a][2] exceeds the limit of "
            "[2147483519] documents per shard",
            "a shard of index shop.a is full (2,147,483,519 documents)",
        ),
        (
            "Elasticsearch refuses bulk requests: 401 security_exception: unable to authenticate user [u]",
            f"Elasticsearch at {HOSTS[0]}: credentials are refused or have expired",
        ),
        ("Connection timed out", f"Elasticsearch at {HOSTS[0]} does not answer: no answer in time"),
        ("[Errno 111] Connection refused", f"Elasticsearch at {HOSTS[0]} does not answer: connection refused"),
        ("429 es_rejected_execution_exception", f"Elasticsearch at {HOSTS[0]} is overloaded: 429 es_rejected_execution"
         "_exception"),
    ],
)  # fmt: skip
def test_causes_of_elasticsearch(said: str, cause: str) -> None:
    assert elasticsearch_cause(said, HOSTS) == cause


def test_causes_of_kafka_and_of_the_query() -> None:
    assert kafka_cause(["k:1"], "TimeoutException: no node") == "Kafka at k:1 does not answer"
    assert (
        kafka_cause(["k:1"], "SaslAuthenticationException: x")
        == "Kafka at k:1: credentials are refused or have expired"
    )
    settings = load_settings(ROOT / "config" / "spark.toml")
    unfit = "Job aborted\nTraceback:\n  File x\nheadrace_documents.indexes.UnfitTable: index a names column 'b'\n\tat X"
    found = problem_of(Exception(unfit), settings)
    assert (found.system, found.cause, found.refused) == (QUERY, "index a names column 'b'", True)
    assert "Correct [[index]]" in found.remedy
    refused = "Job aborted\nheadrace_documents.elastic.index_setup.IndexRefused: index a can't be made: 400\n\tat X"
    found = problem_of(Exception(refused), settings)
    assert (found.system, found.cause, found.refused) == (QUERY, "index a can't be made: 400", True)
    loss = "[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Some data may have been lost Reason:\n Partition t-0 offset was"
    assert "never read: Partition t-0 offset was" in problem_of(Exception(loss), settings).cause
    assert problem_of(Exception("org.apache.kafka.common.errors.TimeoutException: x"), settings).system == KAFKA


def test_a_topic_recreated_while_it_is_read(status: Status) -> None:
    watch = KafkaWatch(load_settings(ROOT / "config" / "spark.toml").kafka, Mock(), status, Pace(10, 0))
    watch.see(Seen({"shop": "a"}, {("shop", 0): 0}, {("shop", 0): 5}))
    assert watch.refused is None
    watch.see(Seen({"shop": "b"}, {("shop", 0): 0}, {("shop", 0): 0}))
    assert isinstance(watch.refused, RefusedError)


def test_the_pace_follows_the_size_of_messages() -> None:
    pace = Pace(50_000, 64_000_000)
    assert pace.begin() == 50_000
    pace.seen(100, 100_000_000)  # of 1 MB each
    assert pace.wrong
    assert pace.begin() == 64
    assert not pace.wrong
    for _ in range(20):
        pace.seen(1000, 300_000)
    assert pace.wrong
    assert pace.begin() == 50_000


def test_the_watchdog_starves_when_nothing_moves(status: Status, clock: Clock) -> None:
    notifier = Mock(spec=Notifier)
    monitor = Monitor(status, notifier)
    status.query_runs(True)
    monitor.tick(0.0)
    assert (notifier.watchdog.call_count, notifier.ready.call_count) == (1, 1)
    clock.now += FED_FOR + 1
    monitor.tick(1.0)
    assert notifier.watchdog.call_count == 1
    status.outages.waiting(ELASTICSEARCH, "task", "away", waits="all")
    monitor.tick(2.0)
    assert notifier.watchdog.call_count == 2, "an outage that is told is no reason to end the process"


@pytest.fixture
def server(status: Status) -> Iterator[HttpServer]:
    made = HttpServer(("127.0.0.1", 0), status, SparkMetrics(status))
    yield made
    made.close()


def get(server: HttpServer, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_http(server: HttpServer, status: Status, clock: Clock) -> None:
    assert get(server, "/livez")[0] == 200
    assert get(server, "/readyz")[0] == 503
    status.query_runs(True)
    assert get(server, "/readyz")[0] == 200
    assert json.loads(get(server, "/health")[1])["state"] == "RUNNING"
    assert get(server, "/nothing")[0] == 404
    clock.now += SILENT
    assert get(server, "/livez")[0] == 503
    status.outages.waiting(KAFKA, "watch", "Kafka does not answer", waits="all")
    code, body = get(server, "/health")
    assert (code, json.loads(body)["causes"][0]["cause"]) == (503, "Kafka does not answer")
    with pytest.raises(HttpError, match="address already in use"):
        HttpServer(("127.0.0.1", server.port), status, SparkMetrics(status))


def names(status: Status) -> set[str]:
    families = text_string_to_metric_families(SparkMetrics(status).text().decode())
    return {sample.name for family in families for sample in family.samples}


@pytest.mark.parametrize("file", ["grafana/headrace-spark.json", "prometheus/headrace-spark.rules.yml"])
def test_each_metric_of_a_dashboard_or_an_alert_exists(file: str, status: Status) -> None:
    status.query_runs(True)
    status.ends({("shop", 0): 10})
    status.read_up_to({("shop", 0): 1})
    status.oldest(1_700_000_000_000)
    status.batch_done(1, 1.0, counts(9))
    status.rebuilds = lambda: {"services": {"tries": 1}}
    text = (DEPLOY / file).read_text()
    wanted = set(re.findall(r"headrace_spark_\w+", text))
    assert wanted
    assert wanted <= names(status)


def test_dashboard_and_alerts_can_be_read() -> None:
    board = json.loads((DEPLOY / "grafana" / "headrace-spark.json").read_text())
    assert all(panel["targets"] for panel in board["panels"])
    # There is no reader of YAML here: each alert has its lines, indented alike, and no tab is among them.
    text = (DEPLOY / "prometheus" / "headrace-spark.rules.yml").read_text()
    assert "\t" not in text
    alerts = re.findall(
        r"^ {6}- alert: (\w+)\n(?: {8}# .*\n)* {8}expr: (?:>-(?:\n {10}\S.*)+|[^>\s].*)\n"
        r"(?: {8}for: \d+m\n)? {8}labels: \{severity: (?:critical|warning)\}\n"
        r" {8}annotations:\n {10}summary: (?:\".+\"|[^\":{]+(?:\{\{ \$labels\.\w+ \}\}[^\":{]*)?)$",
        text,
        re.MULTILINE,
    )
    assert len(alerts) == len(set(alerts)) == text.count("alert:") >= 5


def test_offsets_of_what_is_none() -> None:
    nothing: list[Any] = [None, "null", "", "-", "{", 7]
    assert [offsets_of(one) for one in nothing] == [{}] * len(nothing)
