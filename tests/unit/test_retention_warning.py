"""The warning before a position is purged: when it comes, when it goes; a source that is away changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from headrace.destination.binlogs import RetentionWarning
from headrace.destination.dependencies import Context
from headrace.destination.status import DestinationStatus
from headrace.errors import SourceUnreachable
from headrace.http.health import describe
from headrace.model import Position
from headrace.mysql import source as module
from headrace.mysql.source import MysqlSource
from headrace.ports.source import Retention
from tests.streams import daemon_settings, settings

HERE = Position("server", "b.000001", 4)


class Checks:
    """What each check finds, or the error that it meets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: Retention | Exception = Retention()
        self.closed = 0
        self.heads = list[Any]()
        self.status = DestinationStatus("shop")
        self.source = MysqlSource(settings(), daemon_settings(), lambda *_: True)
        monkeypatch.setattr(module, "SourceConnection", SimpleNamespace(open=self._open))
        monkeypatch.setattr(module, "take_inventory", self._inventory)
        monkeypatch.setattr(module, "retention", self._retention)

    async def _open(self, address: object) -> Any:
        return self

    async def load_variables(self, names: Sequence[str]) -> None:
        """There are more than 600, and a check needs a few."""
        assert names

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed += 1

    async def _inventory(self, connection: object) -> None:
        if isinstance(self.found, Exception):
            raise self.found

    async def _retention(self, inventory: object, position: Position, heads: object) -> Any:
        self.heads.append(heads)
        return self.found

    async def check(self, found: Retention | Exception, **source: Any) -> str:
        self.found = found
        config = settings(source=source)
        self.source.settings = config.source  # the address that serves now
        await RetentionWarning(Context(config, daemon_settings(), self.status), self.source).check(HERE)
        return self.status.troubles.get("retention", "")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Checks:
    return Checks(monkeypatch)


async def test_the_warning_comes_below_the_share_and_goes_at_it(checks: Checks) -> None:
    assert await checks.check(Retention(100, 3600.0, 0.25), retention_warning=0.25) == ""
    text = await checks.check(Retention(100, 3500.0, 0.249), retention_warning=0.25)
    assert "in 3,500 s, 25% of what it keeps is left" in text
    assert describe(checks.status)["retention"]["warning"] == text
    assert (checks.status.retention.bytes, checks.status.retention.seconds) == (100, 3500.0)
    assert await checks.check(Retention(100, 3600.0, 0.25), retention_warning=0.25) == ""
    assert describe(checks.status)["retention"]["warning"] == ""
    assert checks.closed == 3


async def test_without_a_time_the_warning_has_the_bytes(checks: Checks) -> None:
    assert "only 1,234 bytes of binlog" in await checks.check(Retention(1234, None, 0.01))


async def test_a_failed_check_clears_the_numbers_and_keeps_the_warning(checks: Checks) -> None:
    text = await checks.check(Retention(100, 10.0, 0.01))
    assert await checks.check(SourceUnreachable("away")) == text
    assert (checks.status.retention.bytes, checks.status.retention.seconds) == (None, None)
    assert checks.closed == 2
    assert await checks.check(Retention(None, None, None)) == "", "a server that says it never purges does end it"


async def test_the_beginnings_of_files_are_kept_for_the_same_address_only(checks: Checks) -> None:
    for host in ("a", "a", "b"):
        await checks.check(Retention(1, None, None), host=host)
    assert checks.heads[0] is checks.heads[1]
    assert checks.heads[1] is not checks.heads[2]


async def test_the_log_names_the_section_about_it_once(checks: Checks) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            await checks.check(Retention(bytes=100, seconds=60.0, share=0.1))
    (reported,) = [entry["warning"] for entry in logs if entry["event"] == "retention is running out"]
    assert reported.endswith("see docs/troubleshooting.md#retention")
