"""The status page in Chinese: each text has a translation with the same values, and no translation is left over."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

STATIC = Path(__file__).parents[2] / "daemon/headrace/http/static"
SAME = {"headrace", "…", "/health", "says the same as JSON.", "This page needs JavaScript."}
"""What is the same in both languages, and what is shown only where no script runs."""


class Texts(HTMLParser):
    """The texts of a page that a reader sees or hears."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_data(self, data: str) -> None:
        self.found.add(data.strip())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {value or "" for name, value in attrs if name in ("placeholder", "aria-label")}


def test_each_text_of_the_page_has_a_translation_and_no_translation_is_left_over() -> None:
    script, html = (STATIC / "page.js").read_text(), Texts()
    html.feed((STATIC / "index.html").read_text())
    actions = set(re.findall(r'^  \w+: \["(\w+)", "(.+)"\],$', script, re.MULTILINE))
    shown = {*re.findall(r'\bt\("([^"]+)"\)', script), *re.findall(r'fact\(card, "([^"]+)"', script)}
    shown |= {re.sub(r"\$\{[^}]*\}", "{}", text) for text in re.findall(r"\bt`([^`]*)`", script)}
    shown |= {text for pair in actions for text in pair} | html.found - SAME - {""}
    pairs = re.findall(r'"((?:[^"\\]|\\.)+)": "((?:[^"\\]|\\.)+)"', (STATIC / "texts.js").read_text())
    assert {english for english, _ in pairs} == shown
    assert len(actions) == 3
    assert [english for english, chinese in pairs if english.count("{}") != chinese.count("{}")] == []
