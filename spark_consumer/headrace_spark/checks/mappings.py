"""What becomes of values where an index has a field of another type than the one that is planned."""

from __future__ import annotations

from typing import Literal

from headrace_documents.indexes.types import Property

_TEXTS = frozenset({"text", "keyword", "wildcard", "match_only_text", "search_as_you_type", "annotated_text"})
_WHOLE = {"byte": 7, "short": 15, "integer": 31, "long": 63, "unsigned_long": 64}
"""Bits of the largest value."""
_FRACTIONS = {"half_float": 11, "float": 24, "scaled_float": 53, "double": 53}
"""Bits that are kept."""
_NUMBERS = _WHOLE.keys() | _FRACTIONS.keys()
_DATES = frozenset({"date", "date_nanos"})
_SCALARS = _TEXTS | _NUMBERS | _DATES | {"boolean", "ip", "binary"}

Difference = tuple[Literal["warning", "wrong"], str]


def difference(planned: Property, there: Property) -> Difference | None:
    """What a difference of the types does to values; None when the types are the same."""
    want, have = planned.get("type", "object"), there.get("type", "object")
    if want == have:
        analyzers = planned.get("analyzer"), there.get("analyzer")
        if analyzers[0] and analyzers[0] != analyzers[1]:
            return "warning", f"has the analyzer {analyzers[1] or 'standard'}, and {analyzers[0]} is planned"
        return None
    told = f"is {have}, and {want} is planned: "
    if have in _TEXTS and want in _SCALARS:
        return "warning", told + "values are searched and sorted as texts"
    if want in _NUMBERS and have in _NUMBERS:
        return "warning", told + _numbers(want, have)
    if want in _WHOLE and have in _DATES:
        return "warning", told + "numbers count as milliseconds since 1970"
    if want == "keyword" and have in _NUMBERS:
        return "warning", told + "texts that are no numbers are refused"
    if want in _TEXTS and have == "binary":
        return "wrong", told + "texts that are not base64 are refused"
    return "wrong", told + "documents are refused"


def _numbers(want: str, have: str) -> str:
    if have in _WHOLE:
        if want in _FRACTIONS:
            return "digits behind the point are cut off"
        return "larger numbers are refused" if _WHOLE[have] < _WHOLE[want] else "all numbers fit"
    kept = _WHOLE.get(want) or _FRACTIONS[want]
    return "digits may be lost" if _FRACTIONS[have] < kept else "all numbers fit"
