"""Fenced blocks and tables of the documentation, for tests that do what a page says."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str, having: str = "") -> list[str]:
    """The blocks of a language that contain a text, in the order of the page."""
    found = _FENCE.findall((DOCS / page).read_text())
    return [text for name, text in found if name == language and having in text]


def table(page: str, corner: str) -> dict[str, list[str]]:
    """The rows of the table whose first heading is `corner`, by their first cell."""
    lines = (DOCS / page).read_text().partition(f"| {corner} |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in rows}
