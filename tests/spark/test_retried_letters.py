"""Documents whose newest change is refused: what is written meanwhile, and what a retry makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.dead_letters.records import DeadLetter, own_headers
from headrace_spark.settings import KafkaSettings, Settings, SparkSettings
from headrace_spark.transform.worker import Record, Worker
from tests.canal_messages import START, TYPES, change, row

from .conftest import Done, Pipeline

pytestmark = pytest.mark.server

Change = tuple[int, str, str, bytes]
"""Version, key, kind (good, refused or deleted), and the message."""
WIDE = {**TYPES, "sold": "varchar(9)"}


def changes(rng: random.Random, table: str, first: int, count: int) -> list[Change]:
    made: list[Change] = []
    for number in range(first, first + count):
        key, at = str(rng.randrange(4)), START + 10 * number
        kind = rng.choice(["good", "good", "refused", "refused", "deleted"])
        if kind == "deleted":
            value = change(table, at, "DELETE", row(key))
        elif kind == "good":
            value = change(table, at, "UPDATE", row(key, f"v{at}"), old=[{}])
        else:
            value = change(table, at, "UPDATE", row(key, f"v{at}", sold="many"), old=[{}], mysqlType=WIDE)
        made.append((at, key, kind, value))
    return made


def state(history: Iterable[Change]) -> dict[str, tuple[int, str]]:
    """What documents have in the end when all of these changes are taken."""
    last = {key: (at, kind) for at, key, kind, _ in sorted(history)}
    return {key: (at, f"v{at}") for key, (at, kind) in last.items() if kind != "deleted"}


class Index:
    """An index in which `sold` is a number, and what consumers do to it."""

    def __init__(self, url: str, table: str, deletes: str) -> None:
        self.name, self.elastic = f"shop.{table}", Elasticsearch(url)
        found = {"hosts": [url], "retries": 0, "deletes": deletes}
        self._elastic = ElasticsearchSettings.model_validate(found)
        kafka = {"bootstrap_servers": "localhost:1", "topics": ["t"], "dead_letter_topic": "dead"}
        self._settings = Settings(
            kafka=KafkaSettings.model_validate(kafka),
            elasticsearch=self._elastic,
            spark=SparkSettings.model_validate({"checkpoint": "c"}),
        )
        self._offset = 0
        mapping = {"properties": {"sold": {"type": "long"}}}
        self.elastic.indices.create(index=self.name, mappings=mapping, settings={"gc_deletes": "1h"})

    def write(self, rng: random.Random, values: Iterable[bytes]) -> list[DeadLetter]:
        """Writes messages in batches of any size; the dead letters."""
        waiting, letters = list(values), list[DeadLetter]()
        while waiting:
            size = rng.randrange(1, 8)
            batch, waiting = waiting[:size], waiting[size:]
            self._offset += len(batch)
            records = [Record(None, value, "shop", 0, self._offset + n, None) for n, value in enumerate(batch)]
            with Cluster(self._elastic) as cluster:
                letters += Worker(self._settings, BulkWriter(self._elastic, cluster)).run(records)
        return letters

    def fix(self) -> None:
        mapping = {"sold": {"type": "long", "ignore_malformed": True}}
        self.elastic.indices.put_mapping(index=self.name, properties=mapping)

    def documents(self) -> dict[str, tuple[int, str]]:
        self.elastic.indices.refresh(index=self.name)
        found = self.elastic.search(index=self.name, size=1000, version=True)["hits"]["hits"]
        return {hit["_id"]: (hit["_version"], hit["_source"]["name"]) for hit in found if "name" in hit["_source"]}


@pytest.fixture
def make_index(elastic_server: ElasticsearchServer) -> Iterator[Callable[[str, str], Index]]:
    made: list[Index] = []

    def make(table: str, deletes: str) -> Index:
        made.append(Index(elastic_server.url, table, deletes))
        return made[-1]

    yield make
    for index in made:
        index.elastic.close()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_order_changes_and_retries_come_in_documents_are_right(
    make_index: Callable[[str, str], Index], seed: int
) -> None:
    rng = random.Random(seed)
    table = f"retried{seed}"
    index = make_index(table, "tombstone" if seed % 2 else "remove")
    first = changes(rng, table, 0, 30)
    sent = [value for *_, value in first]
    # In any order, some of them twice.
    sent = rng.sample(sent, len(sent)) + rng.sample(sent, 10)
    letters = index.write(rng, sent)
    taken = [one for one in first if one[2] != "refused"]
    assert index.documents() == state(taken)
    # A refused change that is older than what its document has may be passed over; all others are letters.
    newest_taken = {key: at for at, key, kind, _ in first if kind != "refused"}
    refused = {value: (at, key) for at, key, kind, value in first if kind == "refused"}
    found = {letter.value for letter in letters}
    assert found <= refused.keys()
    assert {value for value, (at, key) in refused.items() if at > newest_taken.get(key, 0)} <= found
    assert all(own_headers(letter.headers) == [] for letter in letters)

    # Retried too early they are refused again, and harm nothing.
    again = index.write(rng, [letter.value or b"" for letter in rng.sample(letters, min(5, len(letters)))])
    assert index.documents() == state(taken)

    # Others come in the meantime; then the cause is mended, and letters come back among still newer changes.
    later = changes(rng, table, 30, 10)
    letters += again + index.write(rng, [value for *_, value in later])
    assert index.documents() == state([one for one in first + later if one[2] != "refused"])
    index.fix()
    newest = changes(rng, table, 40, 5)
    back = [letter.value or b"" for letter in letters] + [value for *_, value in newest]
    assert index.write(rng, rng.sample(back, len(back))) == []
    assert index.documents() == state(first + later + newest)


@pytest.mark.long
async def test_letters_are_retried_under_a_running_consumer(pipeline: Pipeline, command: Callable[..., Done]) -> None:
    name = pipeline.topic
    index = f"shop.{name}"
    settings = {"gc_deletes": "1h", "number_of_replicas": 0}
    pipeline.elastic.indices.create(index=index, mappings={"properties": {"sold": {"type": "long"}}}, settings=settings)

    def refused(at: int, key: int) -> bytes:
        return change(name, START + at, "INSERT", row(key, f"v{at}", sold="many"), mysqlType=WIDE)

    def good(at: int, key: int) -> bytes:
        return change(name, START + at, "INSERT", row(key, f"v{at}"))

    def versions() -> dict[str, Any]:
        return {key: (version - START, body["name"]) for key, (version, body) in pipeline.documents().items()}

    pipeline.start()
    await pipeline.send([good(0, 1), good(1, 2), refused(10, 1), refused(11, 2), refused(12, 3)])
    pipeline.wait_for(lambda: versions() == {"1": (0, "v0"), "2": (1, "v1")})
    await pipeline.dead_letters(3)
    # The document of key 2 has a newer change by the time when letters come back.
    await pipeline.send([good(20, 2)])
    pipeline.wait_for(lambda: versions().get("2") == (20, "v20"))
    assert versions() == {"1": (0, "v0"), "2": (20, "v20")}
    words = ["--config", pipeline.config]
    listed = [json.loads(text) for text in command("dead-letters", "list", *words, "--json").out.splitlines()]
    assert {(one["table"], one["key"], one["batch"].isdigit()) for one in listed} == {
        (index, key, True) for key in ("1", "2", "3")
    }
    logged = {one["id"] for one in pipeline.events("dead letter")}
    assert logged == {one["id"] for one in listed}

    pipeline.elastic.indices.put_mapping(index=index, properties={"sold": {"type": "long", "ignore_malformed": True}})
    done = command("dead-letters", "retry", *words, "--all")
    assert (done.code, done.out) == (0, "3 sent again\n")
    expected = {"1": (10, "v10"), "2": (20, "v20"), "3": (12, "v12")}
    pipeline.wait_for(lambda: versions() == expected)
    pipeline.wait_for(lambda: sum(one["stale"] for one in pipeline.events("batch done")) == 1)
    assert versions() == expected
    assert "0 dead letters" in command("dead-letters", "list", *words).out
