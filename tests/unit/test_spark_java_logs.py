"""What Spark's JVM and its workers write: our events pass, stack traces do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import structlog

from headrace_common import logs
from headrace_spark.session.jvm_log import JvmOutput, java_options, log4j_config

EVENT = b'{"event": "dead letter", "level": "warning", "logger": "headrace_spark.transform.worker", "offset": 7}\n'


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def reported(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_events_pass_and_the_rest_goes_to_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json", "debug")
    reports: list[object] = []

    def take(event: dict[str, object]) -> bool:
        reports.append(event["event"])
        return event["logger"] == "headrace_spark.status.task_reports"

    output = JvmOutput(str(tmp_path / "java.log"), take)
    output.line(EVENT)
    output.line(EVENT.replace(b"transform.worker", b"status.task_reports").replace(b"dead letter", b"waiting"))
    for line in (b"Traceback (most recent call last):\n", b"  File x\n", b"{no json\n", b'{"event": "of others"}\n'):
        output.line(line)
    for _ in range(3):
        output.line(b"headrace-java|TaskMemoryManager|a | b\n")
    output.close()
    output.wait(10)
    lines = reported(capsys)
    assert [(line["event"], line.get("offset"), line.get("reason")) for line in lines] == [
        ("dead letter", 7, None),
        ("Java", None, "a | b"),
    ]
    assert lines[0]["logger"] == "headrace_spark.transform.worker"
    assert reports == ["dead letter", "waiting"]
    kept = ["Traceback (most recent call last):", "  File x", "{no json", '{"event": "of others"}']
    assert (tmp_path / "java.log.workers").read_text().splitlines() == kept == list(output.last)


@pytest.mark.parametrize("file", ["", "/var/log/headrace/spark & more.log"])
def test_the_configuration_of_log4j(file: str, tmp_path: Path) -> None:
    root = ElementTree.fromstring(log4j_config(file).partition("?>")[2])
    levels = {one.get("name"): one.get("level") for one in root.iter("Logger")}
    assert levels["org.apache.spark.scheduler"] == ("INFO" if file else "OFF")
    files = [one.get("fileName") for one in root.iter("RollingFile")]
    assert files == ([file] if file else [])
    assert java_options(tmp_path, file).endswith('log4j2.xml"')
