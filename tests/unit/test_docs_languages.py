"""The pages that exist in English and in Chinese say the same: commands, settings, links and sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.zh.md"), *ROOT.glob("docs/*.zh.md")))
COMMENT = {"sh": r"(?:^|\s+)#.*", "toml": r"\s*#.*", "sql": r"\s*--.*"}


def both(page: Path) -> list[str]:
    return [(ROOT / page).read_text(), (ROOT / str(page).replace(".zh.md", ".md")).read_text()]


def blocks(text: str) -> list[str]:
    """What a reader copies: code without its comments, and without pictures made of text."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    code = [re.sub(COMMENT.get(kind, r"$^"), "", body, flags=re.MULTILINE) for kind, body in found]
    return [one for one in code if "──" not in one]


def links(text: str) -> list[str]:
    """Where a page leads; the Chinese page of a pair counts as the English one."""
    return sorted(link.replace(".zh.md", ".md") for link in re.findall(r"\]\(([^)]+)\)", text))


def headings(text: str) -> list[tuple[str, str]]:
    without = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^(##+) (.+)$", without, re.MULTILINE)


def anchors(text: str) -> list[str]:
    """Of the sections of an English page, as GitHub makes them."""
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title in headings(text)]


def test_the_readme_exists_in_both_languages() -> None:
    assert Path("README.zh.md") in PAGES


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_both_languages_have_the_same_code(page: Path) -> None:
    chinese, english = both(page)
    assert blocks(chinese) == blocks(english)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_both_languages_have_the_same_sections_and_links(page: Path) -> None:
    chinese, english = both(page)
    assert [level for level, _ in headings(chinese)] == [level for level, _ in headings(english)]
    assert re.findall(r'^<a id="(.+)"></a>\n\n##', chinese, re.MULTILINE) == anchors(english)
    switch = f"{page.name.removesuffix('.zh.md')}.md"  # each leads to the other
    ours, theirs = ([one for one in links(text) if one != switch] for text in (chinese, english))
    assert ours == theirs
