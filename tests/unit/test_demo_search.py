"""The demo's search: what it looks for in a text, and the marked parts of what was found."""

from __future__ import annotations

import pytest

from demo import search
from demo.search import LONGEST, Hit, pairs, query, segments


@pytest.mark.parametrize(
    ("text", "searched"),
    [
        ("家庭保洁", ["家庭", "庭保", "保洁"]),
        ("保洁", ["保洁"]),
        ("洁", ["洁"]),
        ("保洁 4小时 Clean-up", ["保洁", "4", "小时", "Clean", "up"]),
        ("家家家", ["家家"]),
        ("·,!", []),
    ],
)
def test_chinese_text_is_searched_in_pairs_and_other_words_as_they_are(text: str, searched: list[str]) -> None:
    assert pairs(text) == searched


def test_nothing_is_everything_and_a_long_text_is_cut() -> None:
    assert query("  ") == {"match_all": {}}
    assert query("!") == {"match_none": {}}
    wanted = query("保" * 10_000)["bool"]["should"]
    assert wanted[0]["multi_match"]["query"] == "保" * LONGEST
    assert len(wanted) == 2


def marked(text: str) -> str:
    return text.replace("[", search._OPEN).replace("]", search._CLOSE)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[家][庭][保][洁]·新", [("家庭保洁", True), ("·新", False)]),
        ("专业[保洁],[清洗]", [("专业", False), ("保洁", True), (",", False), ("清洗", True)]),
        ("<script>", [("<script>", False)]),
        ("", []),
    ],
)
def test_a_highlighted_text_is_cut_into_parts(text: str, parts: search.Segments) -> None:
    assert segments(marked(text)) == parts


def test_a_field_without_a_match_comes_as_it_is_and_an_absent_one_not_at_all() -> None:
    hit = {"_id": "7", "_source": {"item_name": "<em>空调</em>", "type": None}}
    fields = ["item_name", "type.name", "item_description"]
    assert search._hit(hit, fields) == Hit("7", hit["_source"], {"item_name": [("<em>空调</em>", False)]})
