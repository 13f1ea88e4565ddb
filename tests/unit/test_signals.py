"""What a row of headrace.signal may ask for: rows, chosen by columns that no rule hides from whoever writes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from headrace.destination.control import Control
from headrace.destination.status import DestinationStatus
from headrace.ports.source import Signal
from headrace.settings.route import FilterSettings

KEPT = FilterSettings(include_columns=r"shop\.items:id/name,shop\.users:id/pin")
HIDDEN = FilterSettings.model_validate(
    {
        "exclude_columns": r"shop\.cards:number",
        "mask": [{"tables": r"shop\.orders", "columns": "ΝΟΜΟΣ,mail", "mask": "null"}],
    }
)


def asked(rules: FilterSettings, tables: str, where: str) -> str:
    """Why a signal is refused; "" for one that is taken."""
    status, merge = DestinationStatus("shop"), Mock(snapshots=())
    settings: Any = SimpleNamespace(filter=rules, source=SimpleNamespace(signal_sql=False))
    context: Any = SimpleNamespace(name="shop", status=status, log=Mock(), settings=settings)
    control = Control(context, merge, Mock(), Mock(), Mock())
    control.signal(Signal(1, "shop", "resync", orjson.dumps({"tables": tables, "where": where}).decode()))
    refused = status.troubles.get("signal", "")
    assert merge.put.called is not bool(refused)
    return refused


@pytest.mark.parametrize(
    ("rules", "tables", "where", "hidden"),
    [
        (KEPT, "shop.items", "name > 'a'", ""),
        (KEPT, "shop.items", "id > 0 and pin > 5", "pin"),  # another table's rule has it
        (KEPT, "shop.users", "id > 0 and pin > 5", ""),
        (KEPT, "shop.users", "name > 'a'", "name"),
        (KEPT, r"shop\.(users|items)", "pin > 5", "pin"),
        (HIDDEN, r"shop\.cards", "number > 5", "number"),
        (HIDDEN, "shop.orders", "number > 5", ""),
        (HIDDEN, "shop.orders", "MAIL > 'a'", "mail"),
        (HIDDEN, "shop.orders", "`maİl` > 'a'", "mai"),  # MySQL's small letter of İ is i
        (HIDDEN, "shop.orders", "νομοσ > 'a'", "νομοσ"),
        (HIDDEN, "shop.other", "mail > 'a'", ""),
        (HIDDEN, "ſhop.other", "mail > 'a'", "mail"),
    ],
)
def test_a_signal_asks_for_no_column_that_a_rule_of_the_table_hides(
    rules: FilterSettings, tables: str, where: str, hidden: str
) -> None:
    refused = asked(rules, tables, where)
    assert (f"a rule of [filter] hides the column {hidden}" in refused) if hidden else not refused
