"""The Spark task's work and the bulk writer against an Elasticsearch that answers as told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from headrace_documents import logs
from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter, encode
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError, BulkError, TransportError
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.dead_letters import records
from headrace_spark.dead_letters.records import DeadLetter
from headrace_spark.settings import KafkaSettings, Settings, SparkSettings
from headrace_spark.sink.writer import PatientWriter
from headrace_spark.status import task_reports
from headrace_spark.status.counting import Counts
from headrace_spark.status.task_reports import LOGGER
from headrace_spark.transform.worker import Record, Worker

Answer = Callable[[list[tuple[str, dict[str, Any]]]], list[dict[str, Any]]]


def api_error(status: int, kind: str = "x") -> ApiError:
    return ApiError(status, {"error": {"type": kind, "reason": "y"}})


class FakeCluster:
    """Answers each bulk request with what `answer` says, and remembers the requests. The indexes in `made` are there,
    each with enough memory of deletes; an account without view_index_metadata has none that are `seen`."""

    def __init__(self, answer: Answer | None = None, *, seen: bool = True) -> None:
        self.requests: list[list[tuple[str, dict[str, Any]]]] = []
        self.made: list[str] = []
        self._seen = seen
        self._answer = answer or (lambda heads: [{"status": 200} for _ in heads])

    def bulk(self, lines: Iterable[bytes], filter_path: str) -> list[dict[str, Any]]:
        heads = []
        for line in lines:
            [(kind, head)] = json.loads(line.split(b"\n")[0]).items()
            heads.append((kind, head))
        self.requests.append(heads)
        return [{"any": item} for item in self._answer(heads)]

    def index_settings(self, index: str) -> dict[str, Any]:
        if not self._seen:
            raise api_error(403, "security_exception")
        if index not in self.made:
            raise api_error(404)
        return {index: {"index.gc_deletes": "1h"}}

    def create_index(self, index: str, body: dict[str, Any]) -> None:
        self.made.append(index)

    def mappings(self, index: str) -> dict[str, Any]:
        return {index: {}}

    def put_mapping(self, index: str, mapping: dict[str, Any]) -> None:
        raise api_error(403, "security_exception")


def settings(**elastic: Any) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers="localhost:1", topics=["t"], dead_letter_topic="dead"),
        elasticsearch=ElasticsearchSettings(hosts=["http://localhost:1"], **elastic),
        spark=SparkSettings(checkpoint="c"),
    )


def writer(fake: FakeCluster, waits: list[float] | None = None, **elastic: Any) -> BulkWriter:
    waits = [] if waits is None else waits
    return BulkWriter(settings(**elastic).elasticsearch, cast(Cluster, fake), waits.append)


def index(name: str, version: int = 1, row: int = 0) -> Action:
    return Action("i", name, version, {"id": name}, row)


def delete(name: str, version: int = 1) -> Action:
    return Action("i", name, version, None, 0)


def record(offset: int, pos: int, kind: str = "INSERT", rows: tuple[str, ...] = ("1",), **changes: Any) -> Record:
    message = {
        "data": [{"id": key, "n": str(pos)} for key in rows],
        "database": "d",
        "table": "t",
        "type": kind,
        "isDdl": False,
        "mysqlType": {"id": "int", "n": "int"},
        "pkNames": ["id"],
        "_pos": str(pos),
        **changes,
    }
    return Record(b"key", json.dumps(message).encode(), "topic", 3, offset, [("headrace-id", b"x")])


def work(fake: FakeCluster, *records: Record, **elastic: Any) -> tuple[list[DeadLetter], Worker]:
    worker = Worker(settings(**elastic), writer(fake, **elastic))
    return list(worker.run(records)), worker


def header(letter: DeadLetter, name: str) -> str:
    return (dict(letter.headers)[name] or b"").decode()


def test_encoding_carries_the_external_version() -> None:
    head, body, end = encode(index("保", 7)).split(b"\n")
    assert json.loads(head) == {"index": {"_index": "i", "_id": "保", "version": 7, "version_type": "external_gte"}}
    assert (json.loads(body), end) == ({"id": "保"}, b"")
    assert encode(delete("1")).count(b"\n") == 1
    assert b'"36893488147419103232"' in encode(Action("i", "1", 1, {"n": 1 << 65}, 0))


def test_older_and_already_gone_are_done() -> None:
    fake = FakeCluster(lambda heads: [{"status": 409}, {"status": 404}])
    bulk = writer(fake)
    assert bulk.write([index("1"), delete("2")]) == []
    assert (bulk.tally.stale, bulk.tally.deleted, len(fake.requests)) == (1, 1, 1)


def test_the_index_is_made_once_with_gc_deletes() -> None:
    fake = FakeCluster()
    bulk = writer(fake)
    bulk.write([index("1")])
    bulk.write([index("2")])
    assert fake.made == ["i"]
    assert settings().elasticsearch.index_body()["settings"]["index.gc_deletes"] == "1h"


def test_missing_rights_for_a_read_send_no_document_to_the_dead_letter_topic() -> None:
    fake = FakeCluster(seen=False)
    assert writer(fake, create_index=False).write([index("1")]) == []
    with pytest.raises(BulkError, match="refuses access to index i: security_exception"):
        writer(fake).write([index("1")])


def test_an_index_that_can_not_be_marked_as_ours_is_written_all_the_same() -> None:
    fake = FakeCluster()
    fake.made.append("i")
    assert writer(fake).write([index("1")._replace(owner=("d", "t"))]) == []


def test_requests_are_cut_by_number_and_by_bytes() -> None:
    fake = FakeCluster()
    writer(fake, bulk_actions=2).write([index(str(i)) for i in range(5)])
    assert [len(request) for request in fake.requests] == [2, 2, 1]
    fake = FakeCluster()
    writer(fake, bulk_bytes=1000).write([Action("i", str(i), 1, {"x": "y" * 600}, 0) for i in range(3)])
    assert [len(request) for request in fake.requests] == [1, 1, 1]


def test_a_mapping_error_is_rejected_and_the_rest_is_written() -> None:
    def answer(heads: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        error = {"type": "document_parsing_exception", "reason": "bad", "caused_by": {"reason": "deep"}}
        return [{"status": 400, "error": error} if head["_id"] == "2" else {"status": 201} for _, head in heads]

    bulk = writer(FakeCluster(answer))
    [rejected] = bulk.write([index("1"), index("2"), index("3")])
    assert (rejected.number, rejected.reason) == (1, "400 document_parsing_exception: bad: deep")
    assert bulk.tally.indexed == 2


def test_a_busy_server_is_asked_again_for_the_rest_only_and_ever_more_slowly() -> None:
    turns = iter([[{"status": 201}, {"status": 429}], [{"status": 503}], [{"status": 200}]])
    fake, waits = FakeCluster(lambda heads: next(turns)), list[float]()
    assert writer(fake, waits).write([index("1"), index("2")]) == []
    assert [[head["_id"] for _, head in request] for request in fake.requests] == [["1", "2"], ["2"], ["2"]]
    assert 0.3 < waits[0] <= 0.5 < waits[1] <= 1.0


@pytest.mark.parametrize("trouble", [api_error(503), api_error(500), TransportError("http://localhost:1", "no")])
def test_lasting_trouble_fails_the_batch(trouble: Exception) -> None:
    def answer(heads: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        raise trouble

    fake = FakeCluster(answer)
    with pytest.raises(BulkError, match="did not take 1 actions after 2 retries"):
        writer(fake, retries=2).write([index("1")])
    assert len(fake.requests) == 3


@pytest.mark.parametrize("status", [401, 403])
def test_missing_rights_fail_the_batch_and_blame_no_document(status: int) -> None:
    fake = FakeCluster(lambda heads: [{"status": status, "error": {"type": "security_exception"}}])
    with pytest.raises(BulkError, match="refuses to write"):
        writer(fake).write([index("1")])


def test_a_blocked_index_fails_the_batch() -> None:
    fake = FakeCluster(lambda heads: [{"status": 400, "error": {"type": "index_closed_exception"}}])
    with pytest.raises(BulkError, match="index_closed"):
        writer(fake).write([index("1")])


def test_a_full_shard_blames_no_document() -> None:
    reason = "Number of documents in shard [a][0] exceeds the limit of [2147483519] documents per shard"
    error = {"type": "illegal_argument_exception", "reason": reason}
    with pytest.raises(BulkError, match="documents per shard"):
        writer(FakeCluster(lambda heads: [{"status": 400, "error": error} for _ in heads])).write([index("1")])


def patient(fake: FakeCluster, counted: Counts, waits: list[float], patience: float | None) -> PatientWriter:
    elastic = settings(retries=1).elasticsearch
    return PatientWriter(elastic, cast(Cluster, fake), counted, patience=patience, sleep=waits.append)


def test_a_writer_of_spark_waits_for_as_long_as_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    tries = iter(range(9))

    def answer(heads: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        if next(tries) < 6:
            raise api_error(503)
        return [{"status": 200} for _ in heads]

    counted, waits = Counts(), list[float]()
    assert patient(FakeCluster(answer), counted, waits, None).write([index("1")]) == []
    assert counted.numbers["retries"] == len(waits) == 6
    assert max(waits) <= 10
    reported = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [one["event"] for one in reported if one["logger"] == LOGGER] == ["waiting"] * 6 + ["progress"]


def test_a_writer_of_a_command_says_in_words_that_it_waits_and_nothing_while_it_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.configure("json")
    monkeypatch.setattr(task_reports, "_EVERY", 0.0)
    away = iter([True, False, False])

    def answer() -> str:
        if next(away):
            raise BulkError("no answer within 2 s")
        return "there"

    elastic = settings().elasticsearch
    made = PatientWriter(
        elastic, cast(Cluster, FakeCluster()), Counts(), task_reports.OfCommand(), sleep=lambda _: None
    )
    assert [made.ask("i", answer), made.ask("i", answer)] == ["there", "there"]
    (reported,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (reported["event"], reported["level"]) == ("Elasticsearch takes nothing; it is asked again", "warning")
    assert "no answer in time" in reported["cause"]


def test_a_writer_of_what_is_to_end_gives_up() -> None:
    fake, counted = FakeCluster(lambda heads: [{"status": 503} for _ in heads]), Counts()
    with pytest.raises(BulkError, match="takes nothing"):
        patient(fake, counted, [], 0.0).write([index("1")])


def test_a_task_waits_if_its_first_read_of_an_index_fails() -> None:
    class Away(FakeCluster):
        tries = 0

        def index_settings(self, index: str) -> dict[str, Any]:
            self.tries += 1
            if self.tries < 4:
                raise TransportError("http://127.0.0.1:1", "no answer within 2 s")
            return super().index_settings(index)

    counted, waits = Counts(), list[float]()
    worker = Worker(settings(), patient(Away(), counted, waits, None), counted=counted)
    assert list(worker.run([record(0, 10)])) == []
    assert worker.counts()["indexed"] == 1
    assert counted.numbers["retries"] == len(waits) == 3


@pytest.mark.parametrize("status", [400, 413])
def test_a_refused_request_is_halved_until_the_culprit_is_found(status: int) -> None:
    def answer(heads: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        if any(head["_id"] == "5" for _, head in heads):
            raise api_error(status)
        return [{"status": 200} for _ in heads]

    bulk = writer(FakeCluster(answer))
    [rejected] = bulk.write([index(str(i)) for i in range(9)])
    assert rejected.number == 5
    assert bulk.tally.indexed == 8


@pytest.mark.parametrize(("kind", "own"), [("null_pointer_exception", True), ("engine_exception", False)])
def test_only_a_reason_of_the_document_s_own_sets_it_aside(kind: str, own: bool) -> None:
    """A shard that is ill answers 500 to each document that comes to it, and to no other."""

    def answer(heads: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [{"status": 500, "error": {"type": kind}} if h["_id"] == "2" else {"status": 200} for _, h in heads]

    bulk = writer(FakeCluster(answer), retries=1)
    if own:
        assert bulk.write([index("1"), index("2")]) == [(1, f"500 {kind}")]
        return
    with pytest.raises(BulkError, match=f"did not take 1 actions after 1 retries: 500 {kind}"):
        bulk.write([index("1"), index("2")])


def test_a_server_that_fails_at_everything_fails_the_batch() -> None:
    fake = FakeCluster(lambda heads: [{"status": 500} for _ in heads])
    with pytest.raises(BulkError):
        writer(fake, retries=1).write([index("1"), index("2")])


def test_the_newest_of_each_document_is_written() -> None:
    fake = FakeCluster()
    letters, worker = work(
        fake, record(0, 10), record(1, 30, "DELETE"), record(2, 20), record(3, 5, rows=("1", "2", "2"))
    )
    assert letters == []
    assert [(kind, head["_id"], head["version"]) for kind, head in fake.requests[0]] == [
        ("delete", "1", 30),
        ("index", "2", 7),
    ]
    assert worker.counts()["rows"] == 6


def test_a_dead_letter_is_the_message_unchanged_with_reason_and_position() -> None:
    poison = Record(b"k", b"\xffnot json", "topic", 3, 17, [("headrace-id", b"x"), ("headrace-dead-reason", b"old")])
    fake = FakeCluster()
    [letter], worker = work(fake, poison, record(18, 1))
    assert (letter.key, letter.value) == (b"k", b"\xffnot json")
    assert header(letter, "headrace-dead-reason").startswith("not JSON")
    assert [name for name, _ in letter.headers].count("headrace-dead-reason") == 1
    number = [header(letter, f"headrace-dead-{name}") for name in ("topic", "partition", "offset")]
    assert number == ["topic", "3", "17"]
    assert header(letter, "headrace-id") == "x"
    assert len(fake.requests[0]) == 1
    assert worker.counts()["dead_letters"] == 1


def test_of_many_dead_letters_the_first_of_each_minute_have_a_line_and_the_next_says_how_many_had_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(records, "_lines", records._Lines())
    monkeypatch.setattr(records.time, "monotonic", lambda: now)
    logs.configure("json")
    letters, _ = work(FakeCluster(), *(Record(None, b"no", "topic", 0, number, None) for number in range(500)))
    assert len(letters) == 500
    for letter in letters:
        records.report(letter)
    now += records.EVERY
    records.report(letters[0])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["offset"] for line in lines] == [*range(records.LINES), 0]
    assert [line.get("left_out") for line in lines] == [None] * records.LINES + [500 - records.LINES]


def test_one_dead_letter_a_message_however_many_rows_are_refused() -> None:
    fake = FakeCluster(
        lambda heads: [{"status": 400 if h["_id"] in "23" else 200, "error": {"type": "x"}} for _, h in heads]
    )
    [letter], _ = work(fake, record(0, 1, rows=("1", "2", "3")), record(1, 9, rows=("4",)))
    assert header(letter, "headrace-dead-reason") == "Elasticsearch refuses row 1: 400 x (and 1 more rows: 1, 2)"
    assert header(letter, "headrace-dead-offset") == "0"


def test_a_full_buffer_is_written_before_the_task_ends() -> None:
    fake = FakeCluster()
    work(fake, *(record(i, i + 1, rows=(str(i),)) for i in range(5)), bulk_actions=2)
    assert [len(request) for request in fake.requests] == [2, 2, 1]


def test_a_buffer_is_bounded_by_the_bytes_of_its_messages() -> None:
    fake = FakeCluster()
    records = [record(i, i + 1, rows=("1",), note="x" * 400) for i in range(6)]
    work(fake, *records, bulk_bytes=1000)
    assert [len(request) for request in fake.requests] == [1, 1, 1], "also when all are changes of one document"


def test_ddl_that_takes_no_row_away_is_counted_and_nothing_else() -> None:
    fake = FakeCluster()
    letters, worker = work(fake, record(0, 1, "ALTER", isDdl=True, sql="ALTER TABLE t ADD COLUMN x INT"))
    assert (letters, fake.requests, worker.counts()["ddl_ignored"]) == ([], [], 1)
