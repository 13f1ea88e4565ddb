"""The pages that exist in English and in Chinese say the same: commands, settings, links and sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_docs import FENCE, LINK, PAGES, ROOT, anchors, name

CHINESE = [page for page in PAGES if page.name.endswith(".zh.md")]
COMMENT = {"sh": r"(?:^|\s+)#.*", "toml": r"\s*#.*", "sql": r"\s*--.*"}


def english(page: Path) -> Path:
    return page.with_name(page.name.replace(".zh.md", ".md"))


def code(page: Path) -> list[str]:
    """What a reader copies: without comments, and without pictures made of text."""
    found = FENCE.findall(page.read_text())
    texts = [re.sub(COMMENT.get(language, r"$^"), "", text, flags=re.MULTILINE) for language, text in found]
    return [one for one in texts if "──" not in one]


def links(page: Path) -> list[str]:
    """Where a page leads, but for the one of the other language. A Chinese page counts as the English one."""
    found = (link.replace(".zh.md", ".md") for link in LINK.findall(FENCE.sub("", page.read_text())))
    return sorted(link for link in found if link != english(page).name)


def levels(page: Path) -> list[str]:
    return re.findall(r"^(#+) ", FENCE.sub("", page.read_text()), re.MULTILINE)


def test_the_readme_exists_in_both_languages() -> None:
    assert ROOT / "README.zh.md" in CHINESE


@pytest.mark.parametrize("page", CHINESE, ids=name)
def test_both_languages_have_the_same_code(page: Path) -> None:
    assert code(page) == code(english(page))


@pytest.mark.parametrize("page", CHINESE, ids=name)
def test_both_languages_have_the_same_sections_and_links(page: Path) -> None:
    assert levels(page) == levels(english(page))
    assert anchors(page) == anchors(english(page))[1:]
    assert links(page) == links(english(page))
