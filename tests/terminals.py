"""What a program shows on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

AT_ONCE = """
import sys
from headrace.cli import terminal
terminal._SOON = 0.0
"""
"""Work shows how far it is from its beginning on, and not after a second."""
COMMAND = f"""{AT_ONCE}
from headrace.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def shown(
    code: str, *words: str, terminal: str, output: Path, folder: Path | None = None, status: Sequence[int] = (0,)
) -> str:
    """What a terminal shows that is the standard error of a Python program, or its standard output too (`both`), or
    neither (`none`). What else it prints is in `output`."""
    ours, theirs = pty.openpty()
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdin=subprocess.DEVNULL,
            stdout=theirs if terminal == "both" else out,
            stderr=theirs if terminal != "none" else out,
            cwd=folder,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "TEST_PASSWORD": "canal"},
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
    assert process.wait(60) in status, said.decode() + output.read_text()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())


def line_by_line(said: str) -> list[str]:
    """What stood there one after the other, where it was one line, which was written again and again, and erased."""
    assert "\n" not in said.rstrip(), said
    return [line.strip() for line in said.split("\r") if line.strip()]
