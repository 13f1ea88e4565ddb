"""Progress and tables on a terminal, and in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import sys, time
from headrace.cli import terminal
terminal._SOON = 0.0
with terminal.progress("decoding", beside_output=True) as work:
    for done in range(0, 101, 20):
        work.at(done * 1_000_000, 100_000_000)
        time.sleep(0.15)
terminal.show_table(("NAME", "STATE"), [("shop", "STREAMING")])
"""


def run(*, terminal: str, output: Path) -> str:
    """What a terminal shows that is the standard error, or the standard output too, of a program."""
    ours, theirs = pty.openpty()
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", SHOW],
            stdin=subprocess.DEVNULL,
            stdout=theirs if terminal == "both" else out,
            stderr=theirs if terminal != "none" else subprocess.DEVNULL,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
    os.close(theirs)
    said = b""
    while True:
        try:
            some = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not some:
            break
        said += some
    os.close(ours)
    assert process.wait(20) == 0
    return said.decode()


@pytest.mark.parametrize(("terminal", "shows"), [("error", True), ("both", False), ("none", False)])
def test_progress_is_shown_where_somebody_sees_it_and_stands_in_nobody_s_way(
    tmp_path: Path, terminal: str, shows: bool
) -> None:
    said = run(terminal=terminal, output=tmp_path / "out")
    assert ("decoding" in said) == shows
    if shows:
        assert "100.0" in said or "100/100" in said
        assert "MB" in said
    plain = (tmp_path / "out").read_text()
    assert plain == ("" if terminal == "both" else "NAME  STATE\nshop  STREAMING\n")
