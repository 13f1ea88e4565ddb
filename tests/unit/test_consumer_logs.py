"""The log of the consumers: their own lines, and of their libraries only what is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from headrace_documents import logs


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADRACE_LOG_FORMAT", "json")
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:], root.level = handlers, level


def test_requests_and_ended_connections_are_no_lines_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("elastic_transport.transport").info("POST http://127.0.0.1:9200/_bulk [status:200]")
    logging.getLogger("py4j.clientserver").info("Closing down clientserver connection")
    logging.getLogger("elastic_transport.node_pool").warning("Node has failed")
    structlog.get_logger("headrace_spark").info("running")
    reported = capsys.readouterr().err
    assert "POST" not in reported
    assert "Closing down" not in reported
    assert "Node has failed" in reported
    assert "running" in reported
