"""The parts of `headrace-spark check` that need no server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from headrace_documents.cli import Findings
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.check.contents import check_messages
from headrace_spark.check.indexes import analyzers, difference
from headrace_spark.check.machine import check_machine
from headrace_spark.check.sample import Sample
from headrace_spark.check.servers import check_rights
from headrace_spark.settings import KafkaSettings, Settings, SparkSettings
from headrace_spark.source.kafka_client import Read
from tests.canal_messages import START, change, row


def machine(**spark: object) -> dict[str, list[str]]:
    findings = Findings()
    check_machine(findings, SparkSettings.model_validate({"driver_memory": "1m", **spark}))
    found: dict[str, list[str]] = {"ok": [], "warning": [], "wrong": []}
    for one in findings.all:
        found[one.level].append(f"{one.name}: {one.sentence}")
    return found


def test_the_machine(tmp_path: Path) -> None:
    good = {"checkpoint": str(tmp_path / "a" / "b"), "scratch": str(tmp_path / "s"), "ivy": str(tmp_path / "i")}
    found = machine(**good)
    assert (found["warning"], found["wrong"], len(found["ok"])) == ([], [], 4)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    conf = {"spark.driver.memory": "2g", "spark.jars.packages": "x", "spark.sql.session.timeZone": "UTC"}
    found = machine(**{**good, "scratch": str(tmp_path / "file" / "x"), "conf": conf, "driver_memory": "900t"})
    assert [text.partition(" ")[0] for text in found["wrong"]] == ["memory:", "[spark]", "scratch:"]
    assert found["warning"] == ["[spark] conf: spark.driver.memory contradicts `driver_memory`"]
    assert "checkpoint: " in machine(**good, master="spark://h:7077")["wrong"][0]
    assert machine(**{**good, "checkpoint": "s3a://b/c"}, master="spark://h:7077")["wrong"] == []
    assert "not tried again" in machine(**good, master="local[2]")["warning"][0]


@pytest.mark.parametrize(
    ("planned", "there", "state"),
    [
        ("long", "long", None),
        ("long", "keyword", "warning"),
        ("long", "integer", "warning"),
        ("unsigned_long", "long", "warning"),
        ("long", "date", "warning"),
        ("long", "boolean", "wrong"),
        ("keyword", "double", "warning"),
        ("text", "double", "wrong"),
        ("text", "keyword", "warning"),
        ("boolean", "long", "wrong"),
        ("date", "long", "wrong"),
        ("date", "text", "warning"),
        ("geo_point", "text", "wrong"),
        ("object", "keyword", "wrong"),
        ("keyword", "object", "wrong"),
        ("text", "ip", "wrong"),
    ],
)
def test_a_difference_is_a_warning_where_documents_fit_all_the_same(
    planned: str, there: str, state: str | None
) -> None:
    found = difference({"type": planned}, {"type": there})
    assert (found and found[0]) == state


def test_analyzers_are_found_in_fields_of_fields_too() -> None:
    properties = {"a": {"type": "text", "fields": {"zh": {"type": "text", "analyzer": "ik"}}}, "b": {"analyzer": "x"}}
    assert analyzers(properties, None) == {"ik", "x"}
    assert difference({"type": "text", "analyzer": "ik"}, {"type": "text"}) is not None


def test_tables_and_the_indexes_that_they_lead_to() -> None:
    sample = Sample()
    for offset, message in enumerate(
        [
            change("orders", START, "INSERT", row(1)),
            change("unkeyed", START, "INSERT", row(1), pkNames=None),
            change("partial", START, "INSERT", {"id": "1"}),
            change("old", START, "INSERT", row(1), _pos=None),
            b"x",
        ]
    ):
        sample.take("shop", Read(0, offset, 0, None, message, []))
    settings = Settings.model_validate(
        {
            "kafka": KafkaSettings.model_validate(
                {"bootstrap_servers": "h:1", "topics": ["shop"], "dead_letter_topic": "d"}
            ),
            "elasticsearch": ElasticsearchSettings.model_validate({"hosts": ["http://h:1"]}),
            "spark": SparkSettings.model_validate({"checkpoint": "c"}),
        }
    )
    findings = Findings()
    assert check_messages(findings, settings, sample).keys() == {"shop.orders", "shop.old"}
    reported = {one.name: (one.level, one.sentence) for one in findings.all if one.name != "messages"}
    assert reported["table shop.unkeyed"][0] == reported["table shop.partial"][0] == "warning"
    assert reported["table shop.orders"] == ("ok", "primary key id; goes into shop.orders")
    assert any("have no _pos" in one.sentence for one in findings.all)


class Answering:
    """A cluster with security: what it says of the account's rights."""

    def __init__(self, answer: Any) -> None:
        self.asked: list[Any] = []
        self._answer = answer

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.append((method, path, body))
        return self._answer


def test_rights_are_asked_for_where_security_is_on() -> None:
    settings = ElasticsearchSettings.model_validate({"hosts": ["http://h:1"], "create_index": False})
    few = {"has_all_requested": False, "index": {"a": {"index": True, "delete": False}, "b": {"index": 1, "delete": 1}}}
    for answer, state, text in (
        ({"has_all_requested": True}, "ok", "the account has index, delete on a, b"),
        (few, "wrong", "the account has no delete on a"),
    ):
        cluster, findings = Answering(answer), Findings()
        check_rights(findings, cast(Cluster, cluster), settings, ["b", "a"])
        assert [(one.level, one.sentence) for one in findings.all] == [(state, text)]
        [(_, path, body)] = cluster.asked
        assert path == "_security/user/_has_privileges"
        assert body == {"index": [{"names": ["a", "b"], "privileges": ["index", "delete"]}]}
