"""Which fields of an index have another type than is wanted, and whose type the configuration says."""

from __future__ import annotations

from typing import Any

from headrace_documents.elastic.mapping_conflicts import Conflict, Wanted
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.cli.status import rows
from headrace_spark.status.outages import Outages
from headrace_spark.status.status import Status

ELASTIC = ElasticsearchSettings(hosts=["http://127.0.0.1:1"])
LONG, TEXT, KEYWORD = ({"type": kind} for kind in ("long", "text", "keyword"))


def wanted(**index: Any) -> Wanted:
    return Wanted(ELASTIC, IndexSettings.model_validate({"name": "a", "tables": "t", **index}))


def test_a_conflict_is_a_field_of_another_type_in_any_index_of_the_alias() -> None:
    columns = [{"amount": TEXT, "new": TEXT}, {"list": {"type": "nested", "properties": {"stock": TEXT}}}]
    there = {"amount": TEXT, "list": {"type": "nested", "properties": {"stock": LONG}}, "guessed": LONG}
    found = wanted().conflicts("a", columns, [{"properties": there}, {"properties": {"amount": LONG}}, {}])
    assert found == {Conflict("a", "list.stock", "long", "text"), Conflict("a", "amount", "long", "text")}
    assert [str(one) for one in sorted(found)] == ["amount is long, and text is wanted",
                                                  "list.stock is long, and text is wanted"]  # fmt: skip


def test_the_first_of_several_tables_says_the_type_as_in_an_index_that_is_made() -> None:
    assert not wanted().conflicts("a", [{"amount": LONG}, {"amount": TEXT}], [{"properties": {"amount": LONG}}])


def test_mappings_in_the_configuration_take_precedence_and_are_marked_as_chosen() -> None:
    own = wanted(mappings={"properties": {"amount": LONG}}, fields={"kind": {"type": "keyword"}, "free": {}})
    assert own.chosen == {"amount", "kind"}
    assert not own.conflicts("a", [{"amount": TEXT}], [{"properties": {"amount": LONG}}])
    join = {"tables": "t", "on": {"id": "id"}}
    fields = {"kind": {"mapping": {"type": "ip"}}, "other": {"column": "x"}}
    joined = wanted(
        join=[
            {"name": "item", **join, "fields": fields},
            {"name": "list", **join, "shape": "list", "parent": "item", "fields": fields},
            {"name": "below", **join, "shape": "fields", "prefix": "b_", "parent": "list", "fields": fields},
        ]
    )
    assert joined.chosen == {"item_kind", "list.kind", "list.b_kind"}


def test_the_status_says_how_far_a_rebuild_is_and_why_it_fails() -> None:
    status = Status(Outages())
    one = {
        "state": "failed",
        "conflicts": ["amount is long, and text is wanted"],
        "held": 3,
        "problem": "away",
        "tries": 2,
    }
    status.rebuilds = lambda: {"shop": one}
    waits = "failed for amount is long, and text is wanted, 3 messages held; it fails (2 tries): away"
    shown = dict(rows(status.page()))["rebuild shop"]
    assert shown.startswith(waits)
    one |= {"step": "reads the tables", "rows": 5, "rows_about": 9, "problem": None}
    assert "reads the tables, 5 rows of about 9 for amount" in "\n".join(
        f"{name}: {text}" for name, text in rows(status.page())
    )
