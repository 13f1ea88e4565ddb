"""What a format prepares for a table schema: once, within a limit, and nothing at all for those that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.cli.wiring import ADAPTERS, new_format
from headrace.errors import FormatError, HeadraceError, NotUnderstood
from headrace.model import Column, TableSchema
from headrace.pipeline import preparation
from headrace.pipeline.message_builder import make_builder
from headrace.pipeline.preparation import Preparation
from tests.streams import settings as stream_settings
from tests.toys.format import ToyFormat


def table(*columns: str, name: str = "t") -> TableSchema:
    return TableSchema("shop", name, tuple(Column(column, "int", "int") for column in columns), (0,))


class Asking(ToyFormat):
    """Notes what it prepares for, and does then what `then` does."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        super().__init__(False, "")
        self.asked: list[TableSchema] = []
        self._then = then

    async def prepare(self, schema: TableSchema) -> None:
        self.asked.append(schema)
        await asyncio.sleep(0)
        self._then()


async def prepared(made: Preparation, schema: TableSchema) -> bool:
    """Whether there was anything to wait for."""
    awaited = made.unprepared(schema)
    if awaited is not None:
        await awaited()
    return awaited is not None


@pytest.mark.parametrize("name", [name for name in ADAPTERS.names("message") if name != "canal-protobuf"])
def test_built_in_formats_prepare_nothing(name: str) -> None:
    config = stream_settings(message={"format": name})
    assert make_builder(config, new_format(config), "server", 1).preparation is None


async def test_each_table_schema_is_prepared_once_and_the_last_two_of_a_table_are_known() -> None:
    fmt = Asking()
    made = Preparation(fmt, lambda schema: schema)
    a, b, c = table("id"), table("id", "n"), table("id", "n", "m")
    assert [await prepared(made, one) for one in (a, table("id"), b, a, table("id", name="u"), b)] == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    assert await prepared(made, c)
    assert not await prepared(made, b)
    assert await prepared(made, a)


async def test_two_that_wait_for_one_table_schema_have_it_prepared_once() -> None:
    fmt = Asking()
    made = Preparation(fmt, lambda schema: schema)
    await asyncio.gather(prepared(made, table("id")), prepared(made, table("id")))
    assert fmt.asked == [table("id")]


async def test_it_is_given_what_is_published() -> None:
    fmt = Asking()
    assert await prepared(Preparation(fmt, lambda schema: table("id")), table("id", "secret"))
    assert fmt.asked == [table("id")]


async def test_what_can_t_be_published_is_left_to_its_rows() -> None:
    def published(schema: TableSchema) -> TableSchema:
        raise NotUnderstood("the configuration does not fit")

    assert Preparation(Asking(), published).unprepared(table("id")) is None


def fail(error: Exception) -> Callable[[], None]:
    def then() -> None:
        raise error

    return then


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (KeyError("x"), "[message] format can't prepare for the table shop.t (KeyError: 'x')"),
        (FormatError("the registry refuses shop.t"), "the registry refuses shop.t"),
    ],
)
async def test_any_error_is_reported_and_it_is_asked_again(error: Exception, reported: str) -> None:
    fmt = Asking(fail(error))
    made = Preparation(fmt, lambda schema: schema)
    for _ in range(2):
        with pytest.raises(HeadraceError) as caught:
            await prepared(made, table("id"))
        assert str(caught.value).startswith(reported)
        assert caught.value.retriable
    assert len(fmt.asked) == 2


async def test_it_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(ToyFormat):
        async def prepare(self, schema: TableSchema) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(preparation, "LIMIT", 0.01)
    with pytest.raises(FormatError, match=r"for the table shop\.t \(no answer within 0\.01 s\)"):
        await prepared(Preparation(Silent(False, ""), lambda schema: schema), table("id"))
