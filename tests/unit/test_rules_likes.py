"""LIKE: beside a plain definition of it, and in time that grows with the text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.rules.likes import like
from tests.examples import examples


def reference(text: str, pattern: str) -> bool:
    """LIKE by its definition, one character at a time."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(reference(text[i:], pattern[1:]) for i in range(len(text) + 1))
    if pattern[0] == "\\" and len(pattern) > 1:
        return text[:1] == pattern[1] and reference(text[1:], pattern[2:])
    return bool(text) and pattern[0] in ("_", text[0]) and reference(text[1:], pattern[1:])


@settings(max_examples=examples(3000))
@given(
    st.text("ab\n\\%_", max_size=8),
    st.lists(st.sampled_from(["a", "a", "b", "%", "%", "%", "_", "\\"]), max_size=7).map("".join),
)
def test_it_is_what_its_definition_says(text: str, pattern: str) -> None:
    assert like(pattern)(text) is reference(text, pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("", "", True),
        ("", "a", False),
        ("%", "", True),
        ("%%", "any", True),
        ("北%", "北京", True),
        ("%京", "北京", True),
        ("%北京%", "大北京市", True),
        ("_京", "北京", True),
        ("__", "😀", False),
        ("_", "😀", True),
        ("a.c", "abc", False),
        ("A%", "abc", False),
        ("a%a", "a", False),
        ("a%_a", "aa", False),
        (r"100\%", "100%", True),
        (r"100\%", "1000", False),
        ("a\\", "a\\", True),
        ("a%b%c", "a--b--c", True),
        ("a%b%c", "a--c--b", False),
        ("%a%a%", "a", False),
        ("%ab%bc%", "abc", False),
        ("%a_%_a%", "aba", False),
        ("a%b%b", "ab", False),
        ("a%b%_", "ab", False),
    ],
)
def test_some_patterns(pattern: str, text: str, matches: bool) -> None:
    assert like(pattern)(text) is matches


@pytest.mark.parametrize(
    "pattern", ["%a%a%a%a%a%a%a%a%b", "%a_a%a_a%a_a%a_a%b", "%_%_%_%_%_%_%_%_%_%b", "a%" * 200 + "b"]
)
def test_many_wildcards_take_no_longer_than_the_text_is_long(pattern: str) -> None:
    match = like(pattern)
    begun = time.process_time()
    assert match("a" * 100_000 + "c") is False
    assert match("a" * 100_000 + "cb") in (True, False)
    assert time.process_time() - begun < 0.5
