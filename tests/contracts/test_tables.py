"""Every adapter that is registered has its entry in the table of its port, and so runs the tests of its contract."""

from __future__ import annotations

import pytest

from tests.contracts.conftest import CLUSTERS, PARKINGS, SINKS, STATES, TOYS


@pytest.mark.parametrize(("kind", "table"), [("sink", SINKS), ("cluster", CLUSTERS), ("parking", {"state", *PARKINGS})])
def test_each_registered_adapter_runs_the_tests_of_its_contract(kind: str, table: set[str]) -> None:
    assert set(table) == set(TOYS.names(kind))


def test_each_embedded_state_store_runs_the_tests_of_its_contract() -> None:
    """STATES has those of sinks too, which are registered as sinks."""
    assert set(TOYS.names("state")) == STATES.keys() - set(TOYS.names("sink"))
