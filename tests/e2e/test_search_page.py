"""The demo's search page over HTTP: hits as they change, edits, and what other pages can't do with it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pymysql
import pytest

from demo import catalog
from demo.compare import INDEX
from demo.search_page import STREAMS, SearchPage
from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings

pytestmark = pytest.mark.server

HOSTILE = "<img src=x onerror=alert(1)>家庭保洁"


def document(key: int, name: str, kind: str, description: str | None) -> dict[str, Any]:
    prices = [{"id": 10 + key, "unit": "天", "price": 9.5}, {"id": 20 + key, "unit": "次", "price": 1200.0}]
    item = {"item_name": name, "item_unit": "次", "item_description": description}
    shown = {"city_name": "北京", "is_on_sale": True, "is_hot": False, "detail": None}
    return {"id": key, **item, **shown, "type": {"id": 1, "name": kind}, "prices": prices}


@pytest.fixture
def cluster(elastic_server: ElasticsearchServer) -> Iterator[Cluster]:
    with Cluster(ElasticsearchSettings(hosts=[elastic_server.url])) as made:
        made.call("DELETE", (INDEX,), ignore_unavailable="true")
        for one in (
            document(1, "保洁家庭", "保洁清洗", "上门服务"),
            document(2, "新居开荒", "开荒", "之后可预约家庭保洁"),
            document(3, HOSTILE, "保洁清洗", None),
            document(4, "空调维修", "家电维修", "家电上门"),
            document(5, "打扫", "家庭保洁", None),
        ):
            made.call("PUT", (INDEX, "_doc", str(one["id"])), one)
        made.refresh(INDEX)
        yield made
        made.call("DELETE", (INDEX,))


@pytest.fixture
def source(mysql: Any) -> Iterator[Any]:
    catalog.create(mysql)
    with catalog.session(mysql) as cursor:
        row = (1, 7, "北京", 1, 0, None, None)
        item = (7, 1, "家庭保洁", "次", None)
        catalog.insert(cursor, {"serve_item": [item], "serve": [row], "serve_price": [(1, "次", "9.50")]})
    yield mysql
    mysql.sql(f"DROP DATABASE {catalog.DATABASE}")


@pytest.fixture
async def client(cluster: Cluster, source: Any) -> AsyncIterator[aiohttp.ClientSession]:
    with SearchPage(cluster, source) as page:
        async with aiohttp.ClientSession(page.url, timeout=aiohttp.ClientTimeout(total=20)) as made:
            yield made


async def event(answer: aiohttp.ClientResponse) -> tuple[str, Any]:
    """The next event of a stream: its name and what it says."""
    name = "message"
    async for line in answer.content:
        word, _, rest = line.decode().rstrip("\n").partition(": ")
        if word == "event":
            name = rest
        elif word == "data":
            return name, json.loads(rest)
    raise AssertionError("the stream has ended")


async def refused(answer: aiohttp.ClientResponse) -> str:
    assert answer.status >= 400
    sentence: str = (await answer.json())["error"]
    return sentence


async def test_hits_are_ranked_and_marked_and_change_with_a_document(
    client: aiohttp.ClientSession, cluster: Cluster
) -> None:
    async with client.get("/events", params={"q": "家庭保洁"}) as stream:
        _, found = await event(stream)
        assert [hit["id"] for hit in found["hits"]] == ["3", "5", "2", "1"]
        first, by_type, by_description, _ = found["hits"]
        assert first["item_name"] == [[HOSTILE.removesuffix("家庭保洁"), False], ["家庭保洁", True]]
        assert by_type["type"] == [["家庭保洁", True]]
        assert by_description["description"] == [["之后可预约", False], ["家庭保洁", True]]
        assert [one["price"] for one in first["row"]["prices"]] == ["1200.00", "9.50"]

        cluster.call("POST", (INDEX, "_update", "3"), {"doc": {"item_name": "家庭保洁·新"}}, refresh="true")
        _, changed = await event(stream)
        assert changed["at"] > found["at"]
        assert changed["hits"][0]["row"]["item_name"] == "家庭保洁·新"


async def test_an_edit_is_one_transaction_and_says_when_it_was_committed(
    client: aiohttp.ClientSession, source: Any
) -> None:
    prices = source.sql("SELECT id FROM serve_price", catalog.DATABASE)
    wanted = {"service": 1, "item_name": "'; DROP TABLE serve; --", "on_sale": False, "prices": {prices[0][0]: "12.30"}}
    async with client.post("/edit", json=wanted) as answer:
        first = await answer.json()
    assert first["changed"] == 3
    found = "SELECT i.name, s.is_on_sale, p.price FROM serve s, serve_item i, serve_price p"
    assert source.sql(found, catalog.DATABASE) == [("'; DROP TABLE serve; --", "0", "12.30")]
    async with client.post("/edit", json=wanted) as answer:
        again = await answer.json()
    assert again["changed"] == 0
    assert again["committed"] > first["committed"]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "the request: Invalid JSON"),
        (b'{"service": 1, "item_name": ""}', "item_name: String should have at least 1 character"),
        (b'{"service": 1, "prices": {"1": "1.234"}}', "prices.1: Decimal input should have no more than 2 decimal"),
        (b'{"service": 1, "city": "x"}', "city: Extra inputs are not permitted"),
    ],
)
async def test_a_bad_edit_is_refused_with_a_sentence(client: aiohttp.ClientSession, body: bytes, sentence: str) -> None:
    async with client.post("/edit", data=body, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status == 400
        assert sentence in await refused(answer)


async def test_a_statement_that_the_database_refuses_is_reported(client: aiohttp.ClientSession, source: Any) -> None:
    source.sql("RENAME TABLE serve TO other", catalog.DATABASE)
    async with client.post("/edit", json={"service": 1, "on_sale": False}) as answer:
        assert await refused(answer) == "the database: Table 'shop.serve' doesn't exist"


async def test_other_pages_of_the_browser_are_refused(client: aiohttp.ClientSession) -> None:
    edit = {"service": 1, "on_sale": False}
    async with client.post("/edit", json=edit, headers={"Origin": "http://example.org"}) as answer:
        assert answer.status == 403
    async with client.get("/events", headers={"Host": "example.org"}) as answer:
        assert answer.status == 403
    async with client.post("/edit", data=json.dumps(edit), headers={"Content-Type": "text/plain"}) as answer:
        assert answer.status == 415
    async with client.post("/edit", data=b" " * 100_000, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status == 413


async def test_the_page_loads_nothing_from_anywhere(client: aiohttp.ClientSession) -> None:
    async with client.get("/") as answer:
        policy, html = answer.headers["Content-Security-Policy"], await answer.text()
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http:" not in html
    assert "https:" not in html


async def test_a_search_that_fails_is_reported_and_so_are_too_many_pages(
    client: aiohttp.ClientSession, cluster: Cluster
) -> None:
    streams = [await client.get("/events") for _ in range(STREAMS)]
    async with client.get("/events") as answer:
        assert answer.status == 503
    assert (await event(streams[0]))[1]["total"] == 5
    cluster.call("POST", (INDEX, "_close"))
    name, sentence = await event(streams[0])
    while "all shards failed" in sentence:  # while they are being closed
        name, sentence = await event(streams[0])
    assert name == "trouble"
    assert "index_closed_exception" in sentence
    cluster.call("POST", (INDEX, "_open"))
    while name == "trouble":  # first that it is closed, then that its shards are on the way
        name, found = await event(streams[0])
    assert found["total"] == 5
    for stream in streams:
        stream.close()


def test_nothing_is_left_running(cluster: Cluster, source: Any) -> None:
    with SearchPage(cluster, source) as page:
        thread = page._thread
    assert not thread.is_alive()
    with pytest.raises(pymysql.MySQLError):
        pymysql.connect(host="127.0.0.1", port=page._port, connect_timeout=1)
