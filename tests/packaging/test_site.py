"""The site of the documentation: it is built without a warning, in both languages, and a dead link ends that."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


SITE = ROOT / ".cache/site"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


def test_the_site_has_both_languages_and_the_ports_and_no_dead_link() -> None:
    done = run("scripts/site")
    assert done.returncode == 0, done.stdout + done.stderr
    index = json.loads((SITE / "html/search/search_index.json").read_text())
    assert index["config"]["lang"] == ["en", "zh"]
    found = {one["location"] for one in index["docs"]}
    assert {"getting-started/", "zh/getting-started/", "ports/#headrace.ports.sink.Sink"} <= found

    with (SITE / "pages/decode.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    done = run(SITE / "venv/bin/python", "-m", "mkdocs", "build", "--strict")
    assert (done.returncode, "nowhere.md" in done.stderr) == (1, True), done.stdout + done.stderr
