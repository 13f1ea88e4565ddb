"""Plants defects into copies of the daemon, one at a time, and returns the seed that finds each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MUTANTS = Path(__file__).parent / "mutants"


def names() -> list[str]:
    """Returns the names of all planted defects."""
    return sorted(file.stem for file in MUTANTS.glob("*.patch"))


def plant(name: str, folder: Path) -> Path:
    """Copies the daemon into a folder and plants a defect; returns what to import it from. Raises ValueError if the
    patch does not fit any more."""
    target = folder / "daemon"
    shutil.copytree(ROOT / "daemon", target, ignore=shutil.ignore_patterns("__pycache__"))
    # As outside of any repository: the folder may be within ours.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)}
    command = ["git", "apply", str(MUTANTS / f"{name}.patch")]
    done = subprocess.run(command, cwd=target, env=env, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"the defect {name} does not fit: {done.stderr}")
    return target


def hunt(chosen: Sequence[str], most: int, seconds: float) -> Iterator[tuple[str, int, str]]:
    """Yields each defect with the seed that finds it, 0 if none of the first `most` does, and the first violation."""
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="headrace-mutant-") as folder:
            path = [plant(name, Path(folder)), ROOT / "common", ROOT]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
            command = [sys.executable, "-m", "sim", "--no-shrink", "--seeds", f"1..{most}", "--seconds", str(seconds)]
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
            found = re.search(r"^seed (\d+) FAILED.*\n(?:  +[\d.]+ s: .*\n)*", done.stdout, re.MULTILINE)
            if found is None and done.returncode:
                yield name, 1, (done.stderr.strip().splitlines() or ["it did not run"])[-1]
                continue
            lines = done.stdout.splitlines()
            texts = [line.strip() for line in lines if line.startswith("  ") and _is_violation(line)]
            yield name, int(found[1]) if found else 0, texts[0] if texts else ""


def _is_violation(line: str) -> bool:
    """Returns whether a line of a report is no fault: those end with their length in seconds."""
    return re.search(r", [\d.]+ s$", line) is None
