"""`scripts/bench --compare REF`: two commits in alternating pairs over the same binlogs and servers."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.daemon import HERE, ROOT, Version
from benchmarks.race import Entry, reported, run
from benchmarks.report import Table

FIGURES = {"rows_per_second": "rows_ratio", "cpu_us": "cpu_ratio", "memory_mb": "memory_ratio"}
_MADE_FROM = ("pyproject.toml", "requirements-dev.lock", "native")
"""What a virtual environment is made from."""
_LEAST = 0.01
"""A smaller difference does not count, however often it comes."""
_PAIRS = 5
"""Fewer say nothing about noise."""
# Each tree has its own folder for Cargo: the libraries of both have the same name, and one would replace the other.
_SET_UP = """
set -euo pipefail
unset CARGO_TARGET_DIR
. scripts/lib.sh
ensure_venv
if [ -x scripts/build-native ]; then scripts/build-native; fi
"""


def check_out(ref: str) -> Version:
    """Returns the other commit in a separate worktree in the cache, with this one's virtual environment if it would be
    the same, or else with its own."""
    commit = _git("rev-parse", "--verify", f"{ref}^{{commit}}")
    tree = ROOT / ".cache" / "bench-trees" / commit
    if not (tree / "pyproject.toml").exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--force", "--detach", str(tree), commit)
    if all(_state(ROOT, name) == _state(tree, name) for name in _MADE_FROM):
        return Version(tree, HERE.venv)
    print(f"bench: {ref} needs a virtual environment of its own", flush=True)
    subprocess.run(["bash", "-c", _SET_UP], cwd=tree, check=True)
    return Version(tree, tree / ".venv")


def _state(tree: Path, name: str) -> list[tuple[str, bytes]]:
    """Returns a file, or the files of a folder that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", name]
    found = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout.split("\n")
    return [(one, (tree / one).read_bytes()) for one in sorted(filter(None, found)) if (tree / one).is_file()]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bench: git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def compare(chosen: Sequence[Entry], other: Version, ref: str, pairs: int) -> list[Table]:
    """Measures each entry with both commits, this many times, in alternating order: returns the ratios, with what
    changed, and the figures behind them."""
    ratios, absolute = Table(f"against {ref}"), Table("both commits")
    sides = {HERE: "here", other: ref}
    for number in range(pairs):
        for entry in chosen:
            figures = {}
            for version in sorted(sides, key=lambda one: (one is HERE) == bool(number % 2)):
                name = f"{entry.name}, {sides[version]}"
                reported(number, pairs, name)
                figures[version] = run(entry, version)
                absolute.add(name, figures[version])
                if not all(figures[version][key] for key in FIGURES):
                    raise SystemExit(f"bench: {name} ended before it could be measured: use a smaller --scale")
            ratios.add(entry.name, {ratio: figures[HERE][key] / figures[other][key] for key, ratio in FIGURES.items()})
    ratios.notes = [verdict(ratios, one) for one in FIGURES.values()]
    return [ratios, absolute]


def verdict(table: Table, ratio: str) -> str:
    """Returns which entries changed in this figure, and which did not: an entry has changed if all pairs are on one
    side of 1, and their median is farther from it than half of their range."""
    moved, rest = [], []
    for name, figures in table.rows.items():
        runs = figures[ratio]
        median = statistics.median(runs)
        least = max(_LEAST, (max(runs) - min(runs)) / 2)
        if (min(runs) > 1 or max(runs) < 1) and abs(median - 1) >= least:
            moved.append(f"{name} ({median - 1:+.1%})")
        else:
            rest.append(name)
    what = "rows/s" if ratio == "rows_ratio" else ratio.removesuffix("_ratio")
    if any(len(figures[ratio]) < _PAIRS for figures in table.rows.values()):
        return f"{what}: fewer than {_PAIRS} pairs say nothing."
    return f"{what}: moved: {', '.join(moved) or 'nothing'}; within the noise: {', '.join(rest) or 'nothing'}."
