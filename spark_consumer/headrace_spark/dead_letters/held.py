"""Messages that wait until an index is filled again: only the old index refuses them, because of a field's former type.

Each index that is filled again has one with its messages, `headrace-held.NAME`. When the new index has the name they
are deleted: their rows are in it. When the rebuild is given up they become dead letters."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

from headrace_documents import logs
from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.mapping_conflicts import Conflict
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.dead_letters.records import ID, DeadLetter, report, texts

DEAD_LETTERS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
    ]
)
_PAGE = 500
_CONFLICTS, _GIVEN_UP = "headrace_conflicts", "headrace_given_up"
"""In `_meta` of the mappings."""


class Held(NamedTuple):
    """A message that only `target` refused, as the dead letter that it would be. `into` has its documents, "" if no
    other index was written yet."""

    target: str
    into: str
    letter: DeadLetter


def held_index(name: str) -> str:
    """Returns the index with the waiting messages of an index."""
    return f"headrace-held.{name}"


def hold(writer: BulkWriter, settings: ElasticsearchSettings, messages: Iterable[Held]) -> Iterator[DeadLetter]:
    """Stores the messages; yields those that can't be stored. Raises BulkError."""
    made = set[str]()
    pending: list[Held] = []
    for one in messages:
        if one.target not in made:
            writer.ask(held_index(one.target), partial(_make, writer.cluster, settings, one.target))
            made.add(one.target)
        pending.append(one)
        if len(pending) >= _PAGE:
            yield from _keep(writer, pending)
            pending = []
    yield from _keep(writer, pending)


def _make(cluster: Cluster, settings: ElasticsearchSettings, name: str) -> None:
    body = {
        "settings": {"index.gc_deletes": settings.gc_deletes},
        "mappings": {"dynamic": False, "properties": {"into": {"type": "keyword"}}},
    }
    cluster.create_index(held_index(name), body)


def _keep(writer: BulkWriter, messages: Sequence[Held]) -> Iterator[DeadLetter]:
    rejected = writer.write([Action(held_index(one.target), _id(one.letter), 1, _body(one), 0) for one in messages])
    for number, _ in rejected:
        yield messages[number].letter


def _id(letter: DeadLetter) -> str:
    """Returns the same id for a message that a batch holds a second time."""
    return hashlib.sha256(texts(letter.headers)[ID].encode()).hexdigest()


def _body(one: Held) -> dict[str, Any]:
    key, value, headers = one.letter
    return {
        "into": one.into,
        "key": _text(key),
        "value": _text(value),
        "headers": [{"name": name, "value": _text(data)} for name, data in headers],
    }


def dead_letter_of(source: dict[str, Any]) -> DeadLetter:
    """Returns the dead letter that a held message becomes."""
    headers = [(str(one["name"]), _bytes(one["value"])) for one in source["headers"]]
    return DeadLetter(_bytes(source["key"]), _bytes(source["value"]), headers)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class HeldMessages:
    """The held messages of one index. The methods raise ApiError and TransportError."""

    def __init__(self, cluster: Cluster, settings: ElasticsearchSettings, name: str) -> None:
        self._cluster, self._settings, self._name, self._index = cluster, settings, name, held_index(name)

    def count(self) -> int:
        """Returns how many wait."""
        self._cluster.call("POST", (self._index, "_refresh"), missing=None)
        return int(self._cluster.call("GET", (self._index, "_count"), missing={"count": 0})["count"])

    def ids(self, into: Sequence[str], *, others: bool) -> Generator[list[str], None, None]:
        """Yields pages of the ids of messages whose documents are in one of these indexes; with `others`, of the
        others."""
        query = {"bool": {"must_not" if others else "filter": [{"terms": {"into": list(into)}}]}}
        with closing(self._cluster.search_pages(self._index, query, size=_PAGE, source=False)) as pages:
            for page in pages:
                yield [hit["_id"] for hit in page]

    def forget(self, ids: Sequence[str]) -> None:
        """Removes messages that have become dead letters."""
        heads = ({"delete": {"_index": self._index, "_id": one}} for one in ids)
        self._cluster.bulk((orjson.dumps(one, option=orjson.OPT_APPEND_NEWLINE) for one in heads), "items.*.status")

    def drop(self) -> None:
        """Deletes all, with the recorded conflicts."""
        self._cluster.delete_index(self._index)

    # -- what is noted with them --------------------------------------------------------------------------------------

    def conflicts(self) -> frozenset[Conflict]:
        """Returns the conflicts for which the index must be filled again."""
        return self._noted(_CONFLICTS)

    def given_up(self) -> frozenset[Conflict]:
        """Returns the conflicts that an operator has given up."""
        return self._noted(_GIVEN_UP)

    def note(self, conflicts: Iterable[Conflict]) -> None:
        """Adds conflicts to the recorded ones. Existing ones are not written again: each failure records the same, and
        would undo what an operator gives up meanwhile."""
        noted, conflicts = self.conflicts(), set(conflicts)
        if not conflicts <= noted:
            _make(self._cluster, self._settings, self._name)
            self._put(_CONFLICTS, noted | conflicts)

    def clear(self) -> None:
        """Records that nothing must be done any more."""
        if self.conflicts():
            self._put(_CONFLICTS, ())

    def give_up(self, conflicts: Iterable[Conflict]) -> None:
        """Records that nothing is done for these."""
        _make(self._cluster, self._settings, self._name)
        self._put(_GIVEN_UP, self.given_up() | set(conflicts))

    def _meta(self) -> dict[str, Any]:
        found = self._cluster.call("GET", (self._index, "_mapping"), missing={})
        metas = [one["mappings"].get("_meta") or {} for one in found.values()]
        return dict(metas[0]) if metas else {}

    def _noted(self, key: str) -> frozenset[Conflict]:
        return frozenset(Conflict(self._name, *one) for one in self._meta().get(key) or ())

    def _put(self, key: str, conflicts: Iterable[Conflict]) -> None:
        noted = sorted(list(one[1:]) for one in conflicts)
        self._cluster.put_mapping(self._index, {"_meta": {**self._meta(), key: noted}})


_TOGETHER = 50
"""Messages that a task reads together."""


class _Read:
    """A function that Spark sends to its tasks."""

    def __init__(self, settings: ElasticsearchSettings, name: str) -> None:
        self._settings, self._index = settings, held_index(name)

    def __call__(self, given: Iterable[str]) -> Iterator[DeadLetter]:
        logs.configure("json")
        ids = list(given)
        with Cluster(self._settings) as cluster:
            for start in range(0, len(ids), _TOGETHER):
                for one in cluster.get_many(self._index, ids[start : start + _TOGETHER]):
                    if one["found"]:
                        letter = dead_letter_of(one["_source"])
                        report(letter)
                        yield letter


def release(
    spark: SparkSession,
    settings: ElasticsearchSettings,
    cluster: Cluster,
    name: str,
    present: Sequence[str],
    save: Callable[[DataFrame], None],
) -> int:
    """Makes dead letters of the messages that are held for an index, except those whose documents one of the indexes
    `present` has; returns how many. A kill during it writes some of them twice, with the same ids. Raises ApiError,
    TransportError and Spark's errors."""
    held = HeldMessages(cluster, settings, name)
    count = 0
    with closing(held.ids(present, others=True)) as pages:
        for page in pages:
            read = spark.sparkContext.parallelize(page, 2).mapPartitions(_Read(settings, name))
            save(spark.createDataFrame(read, DEAD_LETTERS, verifySchema=False))
            held.forget(page)
            count += len(page)
    with closing(held.ids(present, others=False)) as pages:
        for page in pages:
            held.forget(page)
    return count
