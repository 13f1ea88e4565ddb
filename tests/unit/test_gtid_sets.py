"""Arithmetic of GTID sets, held against plain sets of pairs."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.mysql.events.gtid import GtidSet

SOURCES = [f"3e11fa47-71ca-11e1-9e33-c80aa942956{i}" for i in range(2)]
SOURCES.append(f"{SOURCES[0]}:tag")
Model = set[tuple[str, int]]
models = st.sets(st.tuples(st.sampled_from(SOURCES), st.integers(1, 24)), max_size=40)


def made(model: Model) -> GtidSet:
    result = GtidSet()
    for source, number in sorted(model, key=hash):
        result.add(source, number)
    return result


def numbers(gtids: GtidSet) -> Model:
    return {(source, n) for source, pairs in gtids._sets.items() for low, high in pairs for n in range(low, high + 1)}


def sound(gtids: GtidSet, model: Model) -> None:
    """It is what the model is, in the one form that a set has, and its text is read as the same."""
    assert numbers(gtids) == model
    assert gtids.count == len(model)
    assert bool(gtids) == bool(model)
    for pairs in gtids._sets.values():
        assert pairs
        assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(pairs))
    assert str(gtids) == str(made(model))
    assert numbers(GtidSet(str(gtids))) == model


@given(models, models)
def test_minus_common_plus_and_contains_are_those_of_sets(one: Model, other: Model) -> None:
    a, b = made(one), made(other)
    sound(a.minus(b), one - other)
    sound(a.common(b), one & other)
    sound(a.plus(b), one | other)
    assert a.contains(b) == (one >= other)
    sound(a, one)  # and the operands stay what they are
    sound(b, other)


@given(models, models)
def test_what_an_operation_gave_shares_nothing_with_its_operands(one: Model, other: Model) -> None:
    a, b = made(one), made(other)
    results = [a.minus(b), a.common(b), a.plus(b)]
    texts = [str(result) for result in results]
    for source in SOURCES:
        for number in range(1, 30):
            a.add(source, number)
            b.add(source, number)
    assert [str(result) for result in results] == texts


@given(models, st.sampled_from(SOURCES), st.integers(1, 24))
def test_minus_takes_out_a_single_transaction(model: Model, source: str, number: int) -> None:
    sound(made(model).minus(GtidSet(f"{source}:{number}")), model - {(source, number)})


@given(models, st.integers(0, 12))
def test_forgetting_keeps_the_highest_of_each_source_and_no_more_intervals_than_are_allowed(
    model: Model, limit: int
) -> None:
    gtids = made(model)
    before = gtids.intervals
    str(gtids)
    gtids.forget_oldest(limit)
    assert gtids.intervals == min(before, limit)
    left = numbers(gtids)
    sound(gtids, left)
    assert left <= model
    for source in SOURCES:
        kept = [number for name, number in left if name == source]
        if kept:
            assert {n for name, n in model if name == source and n >= min(kept)} == set(kept)


def test_forgetting_takes_from_the_source_with_the_most_intervals() -> None:
    gtids = GtidSet(f"{SOURCES[0]}:1:3:5:7,{SOURCES[1]}:9")
    gtids.forget_oldest(3)
    assert str(gtids) == f"{SOURCES[0]}:5:7,{SOURCES[1]}:9"
