"""The addresses of a source: in which order they are tried, and which of their errors counts."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import (
    LostKind,
    PositionLost,
    SourceChanged,
    SourceEnded,
    SourceError,
    SourceRefused,
    SourceUnreachable,
)
from headrace.model import Position
from headrace.mysql.source import MysqlSource, addresses, most_telling, open_any
from headrace.settings.destination import SourceSettings
from tests.streams import daemon_settings, settings

AWAY, AWAY2 = SourceUnreachable("a is away"), SourceUnreachable("b is away")
LOST = PositionLost("lost", kind=LostKind.GTIDS_PURGED)
CHANGED, REFUSED = SourceChanged("changed"), SourceRefused("read-only")


def source(**more: Any) -> SourceSettings:
    standby = [{"host": "b", "port": 2}, {"host": "c"}]
    raw = {"host": "a", "port": 1, "user": "u", "password": "p", "standby": standby, **more}
    return SourceSettings.model_validate(raw)


def test_each_address_has_all_the_other_settings() -> None:
    made = addresses(source(heartbeat=3.0))
    assert [(one.host, one.port) for one in made] == [("a", 1), ("b", 2), ("c", 3306)]
    assert {(one.heartbeat, one.user) for one in made} == {(3.0, "u")}


@pytest.mark.parametrize(
    ("failures", "reported"),
    [
        ([LOST], LOST),
        ([LOST, LOST], LOST),
        ([AWAY], AWAY),
        ([AWAY, CHANGED], CHANGED),
        ([LOST, CHANGED], CHANGED),
        ([LOST, REFUSED, AWAY], REFUSED),
    ],
)
def test_the_most_specific_error_counts(failures: list[SourceError], reported: SourceError) -> None:
    assert most_telling(failures) is reported


@pytest.mark.parametrize("failures", [[LOST, AWAY], [AWAY, LOST], [AWAY, AWAY2]])
def test_a_position_is_not_lost_while_an_address_is_away(failures: list[SourceError]) -> None:
    reported = most_telling(failures)
    assert type(reported) is SourceUnreachable
    assert all(str(failure.args[0]) in str(reported) for failure in failures)


class Servers:
    """Answers for each host: an error, "diverged" (good only with on_diverged = continue), or a source."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked = list[tuple[str, str]]()

    async def open(self, settings: SourceSettings) -> Any:
        self.asked.append((settings.host, settings.on_diverged))
        answer = self.answers[settings.host]
        if answer == "diverged":
            answer = settings.host if settings.on_diverged == "continue" else CHANGED
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def servers() -> Servers:
    return Servers()


async def test_the_first_address_that_will_do_is_taken(servers: Servers) -> None:
    servers.answers = {"a": AWAY, "b": "b", "c": "c"}
    assert await open_any(addresses(source()), servers.open) == "b"
    assert [host for host, _ in servers.asked] == ["a", "b"]


async def test_a_server_without_a_divergence_comes_before_one_that_would_be_let_go(servers: Servers) -> None:
    servers.answers = {"a": "diverged", "b": AWAY, "c": "c"}
    assert await open_any(addresses(source(on_diverged="continue")), servers.open) == "c"
    assert {how for _, how in servers.asked} == {"fail"}


async def test_when_all_else_fails_a_divergence_is_let_go_if_that_is_configured(servers: Servers) -> None:
    servers.answers = {"a": AWAY, "b": "diverged", "c": LOST}
    assert await open_any(addresses(source(on_diverged="continue")), servers.open) == "b"
    servers.asked.clear()
    with pytest.raises(SourceChanged):
        await open_any(addresses(source()), servers.open)
    assert servers.asked == [("a", "fail"), ("b", "fail"), ("c", "fail")]


async def test_the_return_of_the_address_that_was_away_counts_and_not_that_of_one_without_the_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: dict[str, SourceError | None] = {"a": LOST, "b": AWAY}
    up = {"a", "c"}

    async def make_ready(one: SourceSettings, *_: Any, **__: Any) -> Any:
        if (error := answers.get(one.host)) is not None:
            raise error
        raise AWAY2

    async def connect(address: Any) -> Any:
        if address.host not in up:
            raise AWAY
        return Connection()

    monkeypatch.setattr("headrace.mysql.source.make_ready", make_ready)
    monkeypatch.setattr("headrace.mysql.source.SourceConnection.open", connect)
    standby = [{"host": "b", "port": 2}]
    made = MysqlSource(
        settings(source={"host": "a", "port": 1, "standby": standby}), daemon_settings(), lambda *_: True
    )
    assert await made.reachable(), "before it was opened any counts"
    with pytest.raises(SourceUnreachable):
        await made.open(None)
    assert not await made.reachable()
    up.add("b")
    assert await made.reachable()
    answers["a"] = AWAY2
    with pytest.raises(SourceUnreachable):
        await made.open(None)
    up.remove("b")
    assert await made.reachable(), "of two that were away one is enough"


class Connection:
    """A connection that is closed again."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("standby", "error"), [([{"host": "b"}], SourceEnded), ([], PositionLost)])
async def test_an_address_that_loses_the_position_while_it_is_read_does_not_speak_for_the_others(
    standby: list[dict[str, str]], error: type[SourceError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any, **__: Any) -> None:
        raise LOST

    monkeypatch.setattr("headrace.mysql.source.make_ready", lost)
    config = settings(source={"host": "a", "user": "u", "password": "p", "standby": standby})
    with pytest.raises(error):
        await MysqlSource(config, daemon_settings(), lambda *_: True).reopen(Position("u", "b.000001", 4))
