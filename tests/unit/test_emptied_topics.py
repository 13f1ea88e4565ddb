"""Topics that were emptied: what shows it, and what makes it good."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.destination.dependencies import Context
from headrace.destination.emptied import EmptiedTopics
from headrace.destination.status import DestinationStatus
from headrace.model import TableRows
from headrace.ports.sink import TopicEnds
from headrace.settings.daemon import DaemonSettings
from headrace.snapshot.plan import matching
from headrace.snapshots import Snapshot
from tests.streams import settings

TROUBLE = "emptied_topic"


@pytest.fixture
def status() -> DestinationStatus:
    made = DestinationStatus("shop")
    for table in ("orders", "items", "notes"):
        made.published.tables.add(TableRows("shop", table, inserted=1, commit_time_us=1))
    return made


def emptied(ends: TopicEnds, status: DestinationStatus) -> EmptiedTopics:
    """Orders and items go to one topic, notes to another."""
    context = Context(settings(), DaemonSettings(), status)
    return EmptiedTopics(context, ends, lambda _, table: "notes" if table == "notes" else "sales")


def resync(tables: str = "", **more: Any) -> tuple[Snapshot, Any]:
    asked = more.pop("asked_us", 1 << 62)
    return Snapshot("r1", "resync", tables, asked_us=asked, **more), matching(tables, lambda schema, table: True)


def test_offsets_that_go_back_show_it_in_the_partition_where_they_do() -> None:
    ends = TopicEnds()
    for partition, offset in ((0, 0), (1, 0), (0, 5), (1, 7), (0, -1), (0, 6)):
        ends.confirmed("sales", partition, offset)
    assert ends.emptied == {}
    ends.confirmed("sales", 1, 0)
    assert ends.emptied["sales"].text == "partition 1 goes on at offset 0, and had come to 7"
    del ends.emptied["sales"]
    ends.confirmed("sales", 0, 0)
    assert ends.emptied == {}, "the other partitions of the same topic say nothing new"
    ends.confirmed("sales", 0, 0)
    assert list(ends.emptied) == ["sales"]


@pytest.mark.parametrize(
    ("made_good", "asked"),
    [
        (True, resync()),
        (True, resync(r"shop\.orders,shop\.items")),
        (False, resync(r"shop\.orders")),
        (False, resync(r"shop\.notes")),
        (False, resync(where="id > 5")),
        (False, resync(columns=("id",))),
        (False, resync(asked_us=1)),
    ],
)
def test_a_whole_resync_of_every_table_of_the_topic_makes_it_good(
    made_good: bool, asked: tuple[Snapshot, Any], status: DestinationStatus
) -> None:
    ends = TopicEnds()
    topics = emptied(ends, status)
    for _ in range(2):
        ends.confirmed("sales", 0, 3)
    topics.check()
    assert "rows of shop.items, shop.orders" in status.troubles[TROUBLE].replace(" and ", ", ")
    assert "headrace resync shop --all" in status.troubles[TROUBLE]
    topics.resynced(*asked)
    assert (TROUBLE not in status.troubles) is made_good


def test_the_remedy_names_the_table_when_it_is_one(status: DestinationStatus) -> None:
    ends = TopicEnds()
    for _ in range(2):
        ends.confirmed("notes", 0, 3)
    emptied(ends, status).check()
    assert "headrace resync shop shop.notes" in status.troubles[TROUBLE]


def test_what_was_found_in_one_run_is_a_trouble_in_the_next(status: DestinationStatus) -> None:
    ends = TopicEnds()
    for _ in range(2):
        ends.confirmed("notes", 0, 3)
    emptied(ends, status).check()
    topics = emptied(ends, status)
    topics.resynced(*resync())
    assert status.troubles == {}
