"""A column changes its type under a writer: the index is filled anew by the running consumer; with real servers."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from elasticsearch import ApiError

from tests.canal_messages import START, change
from tests.support import DaemonProcess, eventually

from .conftest import Pipeline
from .source_tables import JOINED, PLAIN, configure, kill, start_command, start_daemon, writing

pytestmark = [pytest.mark.server, pytest.mark.long]

REINDEX = 'on_mapping_conflict = "reindex"\n'
COUNT = 1500
REFUSED = 3
"""Messages of Shop.alter() that do not fit: a statement has one."""


@dataclass
class Shop:
    """Tables with a column that changes its type, the daemon that publishes them, and the index that has them."""

    mysql: Any
    schema: str
    execute: Callable[..., Any]
    pipeline: Pipeline
    changes: DaemonProcess
    name: str = ""
    joined: bool = False

    def fill(self, index: str, how: str = REINDEX) -> None:
        """Declares the index, and makes rows."""
        self.joined = index is JOINED
        self.name = configure(self.pipeline, self.mysql, self.schema, index.replace("tables =", f"{how}tables =", 1))
        self.execute("ALTER TABLE t ADD amount INT", "ALTER TABLE price ADD stock INT")
        for start in range(0, COUNT, 500):
            keys = range(start, start + 500)
            self.execute("INSERT INTO t VALUES " + ",".join(f"({key}, 'old {key}', {key})" for key in keys))
            self.execute("INSERT INTO price VALUES " + ",".join(f"({key}, {key // 3}, 1.5, {key})" for key in keys))

    @property
    def altered(self) -> tuple[str, str]:
        """The table and the column that change."""
        return ("price", "stock") if self.joined else ("t", "amount")

    def alter(self) -> None:
        """Gives the column texts, and some rows fates of their own in the first moment."""
        table, column = self.altered
        self.execute(
            f"ALTER TABLE {table} MODIFY {column} VARCHAR(20)",
            f"UPDATE {table} SET {column} = 'refused' WHERE id BETWEEN 3 AND 8",
            f"DELETE FROM {table} WHERE id IN (3, 4)",
            f"UPDATE {table} SET {column} = '77' WHERE id = 5",
            f"UPDATE {table} SET {column} = 'once more' WHERE id = 6",
            f"INSERT INTO {table} SELECT id + 700000, {'t_id, amount' if self.joined else 'name'}, 'new' FROM {table}"
            " WHERE id = 8",
        )

    def statement(self, chance: random.Random) -> str:
        """One that changes rows."""
        table, column = self.altered
        key = chance.randrange(10, COUNT * 2)
        text = chance.choice((f"{key}", f"n{key}"))
        rest = f"{chance.randrange(COUNT)}, 2.5" if self.joined else "'name'"
        return chance.choice(
            (
                f"REPLACE INTO {table} VALUES ({key}, {rest}, '{text}')",
                f"DELETE FROM {table} WHERE id = {key}",
                f"UPDATE {table} SET {column} = '{text}' WHERE id BETWEEN {key} AND {key + 3}",
            )
        )

    def rows(self) -> dict[str, Any]:
        """What the documents are to be. All values are texts: a row may come from before the change."""
        found = self.execute("SELECT id, name, amount FROM t")
        rows = {str(key): {"id": str(key), "name": name, "amount": str(amount)} for key, name, amount in found}
        if self.joined:
            for row in rows.values():
                row["prices"] = []
            for key, owner, amount, stock in self.execute("SELECT id, t_id, amount, stock FROM price ORDER BY id"):
                if (row := rows.get(str(owner))) is not None:
                    one = {"id": str(key), "t_id": str(owner), "amount": str(amount), "stock": str(stock)}
                    row["prices"].append(one)
        return rows

    def documents(self) -> dict[str, Any]:
        return {key: texts(body) for key, (_, body) in self.pipeline.documents(self.name).items()}

    def differing(self) -> str:
        found, wanted = self.documents(), self.rows()
        keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
        return "; ".join(f"{key}: {found.get(key)} for {wanted.get(key)}" for key in keys[:5])

    def is_done(self) -> bool:
        """Whether another index has the name, and nothing is left of the rebuild."""
        elastic = self.pipeline.elastic
        if not elastic.indices.exists_alias(name=self.name):
            return False
        options: dict[str, Any] = {"ignore_unavailable": True}
        try:
            noted = elastic.search(index="headrace-rebuilds", query={"ids": {"values": [self.name]}}, **options)
            held = elastic.search(index=f"headrace-held.{self.name}", **options)
        except ApiError as error:
            if error.status_code != 503:
                raise
            return False  # an index is being created or deleted
        return not noted["hits"]["hits"] and not held["hits"]["hits"]

    def type(self) -> str:
        """The type that the column has in the index."""
        [found] = self.pipeline.elastic.indices.get_mapping(index=self.name).values()
        properties = found["mappings"]["properties"]
        return str((properties["prices"]["properties"]["stock"] if self.joined else properties["amount"])["type"])

    def started(self) -> Any:
        """The consumer, once it has written all rows."""
        process = self.pipeline.start()
        self.pipeline.wait_for(
            lambda: self.pipeline.elastic.indices.exists(index=self.name) and self.documents() == self.rows(), 120
        )
        return process


def texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: texts(one) for name, one in value.items()}
    return [texts(one) for one in value] if isinstance(value, list) else str(value)


@pytest.fixture
def shop(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, daemon: Callable[..., DaemonProcess]
) -> Iterator[Shop]:
    made = Shop(mysql, schema, execute, pipeline, start_daemon(mysql, schema, execute, pipeline, daemon))
    yield made
    if made.name:
        names = [made.name, *(f"{made.name}-{number:06d}" for number in range(2, 5))]
        every = [*names, *(f"headrace-rows.{name}" for name in names), f"headrace-held.{made.name}"]
        found = pipeline.elastic.options(ignore_status=[400, 404])
        for name in every:
            found.indices.delete(index=name)


async def test_a_changed_type_fills_the_index_again_during_the_stream(shop: Shop) -> None:
    await refilled(shop, PLAIN)


async def test_a_changed_type_of_a_join_fills_the_index_again(shop: Shop) -> None:
    await refilled(shop, JOINED)


async def test_a_consumer_that_is_killed_goes_on_filling_by_itself(shop: Shop) -> None:
    await refilled(shop, PLAIN, killed=True)


async def refilled(shop: Shop, index: str, *, killed: bool = False) -> None:
    pipeline = shop.pipeline
    shop.fill(index)
    consumer = shop.started()
    assert shop.type() == "long"
    with writing(shop.mysql, shop.schema, shop.statement):
        shop.alter()
        if killed:
            pipeline.wait_for(lambda: pipeline.events("an index is to be refilled"), 60)
            kill(consumer)
            consumer = pipeline.start()
            pipeline.wait_for(lambda: pipeline.events("the rebuild goes on"), 90)
            kill(consumer)
            reported, consumer = len(pipeline.events("the rebuild goes on")), pipeline.start()
            pipeline.wait_for(lambda: len(pipeline.events("the rebuild goes on")) > reported, 90)
            consumer.send_signal(signal.SIGTERM)
            assert consumer.wait(60) == 0, pipeline.text()
            assert "Traceback" not in pipeline.log.read_text(errors="replace")
            consumer = pipeline.start()
        pipeline.wait_for(shop.is_done, 240)
    eventually(lambda: shop.documents() == shop.rows(), 90, shop.differing)
    assert pipeline.elastic.indices.get_alias(name=shop.name).body.keys() == {f"{shop.name}-000002"}
    assert shop.type() == "text"
    if not shop.joined and not killed:
        await older_types_begin_nothing(shop)
    health = pipeline.health()
    assert (health["state"], health["rebuilds"]) == ("RUNNING", {})
    consumer.send_signal(signal.SIGTERM)
    assert consumer.wait(60) == 0, pipeline.text()
    assert shop.changes.terminate() == 0
    await pipeline.dead_letters(0)


async def older_types_begin_nothing(shop: Shop) -> None:
    """A message from before the change, which comes once more."""
    pipeline, types = shop.pipeline, {"id": "int", "name": "varchar(40)", "amount": "int"}
    before, row = pipeline.health()["messages"], {"id": "900000", "name": "n", "amount": "1"}
    await pipeline.send([change("t", 50, "DELETE", row, database=shop.schema, mysqlType=types, sqlType={})])
    pipeline.wait_for(lambda: pipeline.health()["messages"] > before, 60)
    pipeline.wait_for(lambda: pipeline.health()["rebuilds"] == {}, 60)
    assert len(pipeline.events("an index is to be refilled")) == 1


async def test_it_is_tried_again_until_the_source_lets_us_and_what_both_refuse_is_a_dead_letter(shop: Shop) -> None:
    pipeline, account = shop.pipeline, f"{shop.schema}_reader"
    shop.fill(PLAIN)
    pipeline.change('user = "root"', f'user = "{account}"')
    shop.started()
    shop.alter()
    pipeline.wait_for(lambda: rebuild_of(shop).get("tries", 0) >= 2, 90)
    reported = rebuild_of(shop)
    assert "the source at 127.0.0.1" in reported["problem"]
    assert reported["conflicts"] == ["amount is long, and text is wanted"]
    pipeline.wait_for(lambda: rebuild_of(shop)["held"] > 0, 60)
    assert 'headrace_spark_rebuild_failed_tries{index="' in pipeline.metrics()
    # `status` prints it, and `check` of a search still finds the old index.
    status = start_command(pipeline, "status")
    assert status.wait(60) == 0
    assert f"rebuild {shop.name}" in pipeline.text()
    assert shop.type() == "long"
    shop.execute(f"CREATE USER {account} IDENTIFIED BY 'root'", f"GRANT SELECT ON {shop.schema}.* TO {account}")
    try:
        pipeline.wait_for(lambda: pipeline.events("an index is rebuilt: its changes are written twice"), 120)
        value = both_refuse(shop)
        await pipeline.send([value])
        pipeline.wait_for(lambda: shop.is_done(), 240)
    finally:
        shop.execute(f"DROP USER {account}")
    eventually(lambda: shop.documents() == shop.rows(), 90, shop.differing)
    [letter] = await pipeline.dead_letters(1)
    assert letter.value == value


def rebuild_of(shop: Shop) -> dict[str, Any]:
    found: dict[str, Any] = shop.pipeline.health()["rebuilds"].get(shop.name, {})
    return found


def both_refuse(shop: Shop) -> bytes:
    """A message of a row that no index takes, because the key is no number."""
    types = {"id": "int", "name": "varchar(40)", "amount": "varchar(20)"}
    row = {"id": "none", "name": "n", "amount": "a"}
    return change("t", START * 2, "INSERT", row, database=shop.schema, mysqlType=types, sqlType={})


async def test_what_is_given_up_leaves_dead_letters_and_is_not_begun_again(shop: Shop) -> None:
    pipeline = shop.pipeline
    shop.fill(PLAIN)
    pipeline.change('user = "root"', 'user = "nobody"')
    shop.started()
    shop.alter()
    # Six updates and an insert do not fit, and one of the rows is updated again.
    pipeline.wait_for(lambda: rebuild_of(shop).get("held") == REFUSED and rebuild_of(shop)["problem"], 90)
    await pipeline.dead_letters(0)
    abort = start_command(pipeline, "rebuild", "--index", shop.name, "--abort")
    assert abort.wait(60) == 0, pipeline.text()
    pipeline.wait_for(lambda: rebuild_of(shop) == {}, 60)
    pipeline.wait_for(lambda: pipeline.health()["dead_letters"] == REFUSED, 60)
    letters = await pipeline.dead_letters(REFUSED)
    assert all(b"Elasticsearch refuses row" in dict(one.headers)["headrace-dead-reason"] for one in letters)
    # From now on it is as with dead_letter.
    shop.execute("UPDATE t SET amount = 'later' WHERE id = 1000", "UPDATE t SET amount = '9' WHERE id = 1001")
    pipeline.wait_for(lambda: shop.documents()["1001"]["amount"] == "9", 60)
    await pipeline.dead_letters(REFUSED + 1)
    assert not pipeline.elastic.indices.exists(index=f"{shop.name}-000002")
    assert start_command(pipeline, "rebuild", "--index", shop.name, "--abort").wait(60) == 1


async def test_with_dead_letter_the_index_stays_and_what_does_not_fit_is_a_dead_letter(shop: Shop) -> None:
    pipeline = shop.pipeline
    shop.fill(PLAIN, 'on_mapping_conflict = "dead_letter"\n')
    shop.started()
    shop.alter()
    pipeline.wait_for(lambda: pipeline.health()["dead_letters"] == REFUSED, 60)
    await pipeline.dead_letters(REFUSED)
    assert shop.type() == "long"
    assert not pipeline.elastic.indices.exists(index=f"headrace-held.{shop.name}")
