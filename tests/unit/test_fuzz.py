"""Damaged binlogs: a clean error each time, no hang, no memory that a lie asks for."""

from __future__ import annotations

import pytest

from tests import fuzz
from tests.examples import examples

INPUTS = examples(1500)
"""More of them by hand: python -m tests.fuzz 1000000."""


@pytest.mark.hypothesis
def test_damaged_binlogs_end_in_a_clean_error_or_none() -> None:
    results = fuzz.run(INPUTS, seed=20260)
    assert results["ok"] < INPUTS * 0.9, "most damage is noticed"
    assert len(results) > 10, "damage of many kinds is tried"


def test_the_seeds_themselves_are_read_up_to_the_statement_that_stops() -> None:
    for path in sorted(fuzz.SEEDS.glob("*.bin")):
        data = b"".join(fuzz.packet(event) for event in fuzz.read_events(path))
        outcome = fuzz.try_one(data)
        assert outcome == "ok" or "was written as text" in outcome or outcome.startswith("a statement"), (path, outcome)


def test_an_error_that_is_not_ours_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker is checked: one broken function, and the run fails with the input."""

    def broken(*_: object) -> str:
        raise RuntimeError("not ours")

    monkeypatch.setattr(fuzz, "try_one", broken)
    with pytest.raises(AssertionError, match="input 1 of seed 1: RuntimeError"):
        fuzz.run(10, 1)
