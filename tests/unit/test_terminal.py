"""Progress and tables on a terminal, and in a pipe."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.terminals import AT_ONCE, line_by_line, shown

SHOW = f"""{AT_ONCE}
import time
with terminal.progress("decoding", beside_output=True) as work:
    for done in range(0, 101, 20):
        work.at(done * 1_000_000, 100_000_000)
        time.sleep(0.15)
terminal.show_table(("NAME", "STATE"), [("shop", "STREAMING")])
"""
COUNT = f"""{AT_ONCE}
import time
with terminal.progress("counting", counts=True) as work:
    for about, total in (("messages", None), ("rows", 80_000)):
        for done in range(0, 5):
            work.at(done * 10_000, total, about)
            time.sleep(0.15)
"""


@pytest.mark.parametrize(("terminal", "shows"), [("error", True), ("both", False), ("none", False)])
def test_progress_is_shown_only_on_a_terminal(tmp_path: Path, terminal: str, shows: bool) -> None:
    said = shown(SHOW, terminal=terminal, output=tmp_path / "out")
    assert ("decoding" in said) == shows
    if shows:
        assert "100.0" in said or "100/100" in said
        assert "MB" in said
    plain = (tmp_path / "out").read_text()
    assert plain == ("" if terminal == "both" else "NAME  STATE\nshop  STREAMING\n")


@pytest.mark.parametrize("terminal", ["both", "none"])
def test_a_hostile_name_in_a_table_is_shown_and_not_obeyed(tmp_path: Path, terminal: str) -> None:
    made = f"""{AT_ONCE}
terminal.show_table(("TABLE", "COLUMNS"), [("a\\x1b]0;owned\\x07订单", "2")])
"""
    said = shown(made, terminal=terminal, output=tmp_path / "out") + (tmp_path / "out").read_text()
    assert r"a\u001b]0;owned\u0007订单" in said
    assert "\x07" not in said


def test_what_is_counted_has_one_line_with_its_share_where_that_is_known_its_rate_and_the_time_left(
    tmp_path: Path,
) -> None:
    said = shown(COUNT, terminal="error", output=tmp_path / "out")
    lines = line_by_line(said)
    messages, rows = ([line for line in lines if line.startswith(about)] for about in ("messages", "rows"))
    assert re.search(r"40,000 [\d,]+/s", messages[-1])
    assert "%" not in messages[-1]
    assert re.search(r" 50% 40,000 [\d,]+/s 0:00:0\d", rows[-1])
    rate = int(re.findall(r"([\d,]+)/s", rows[-1])[0].replace(",", ""))
    assert 10_000 < rate < 70_000, "that of the rows alone"
    assert shown(COUNT, terminal="none", output=tmp_path / "pipe") == ""
    assert (tmp_path / "pipe").read_bytes() == b""


def test_what_is_over_within_a_second_shows_nothing(tmp_path: Path) -> None:
    quick = COUNT.replace("terminal._SOON = 0.0", "terminal._SOON = 60.0")
    assert shown(quick, terminal="error", output=tmp_path / "out") == ""
