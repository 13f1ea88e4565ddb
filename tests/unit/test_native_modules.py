"""The sources of native code: its modules form no circle, and its interface has another number whenever it changes."""

from __future__ import annotations

import hashlib
import re
from graphlib import TopologicalSorter
from pathlib import Path

from headrace import native

NATIVE = Path(__file__).parents[2] / "native"
INTERFACE = 16, "26a5014d"
"""The number, and the begin of the SHA-256 of what it stands for."""


def test_no_module_needs_itself_by_way_of_others() -> None:
    sources = {path.stem: re.sub(r"//.*", "", path.read_text()) for path in (NATIVE / "core" / "src").glob("*.rs")}
    del sources["lib"]
    needs = {}
    for name, text in sources.items():
        lists = "".join(re.findall(r"crate::\{([^}]*)\}", text))
        needs[name] = {*re.findall(r"crate::(\w+)", text), *re.findall(r"\w+", lists)} & sources.keys() - {name}
    assert any(needs.values())
    TopologicalSorter(needs).prepare()  # raises CycleError


def test_a_changed_interface_has_another_number() -> None:
    """If this fails: increase INTERFACE in native.py and lib.rs unless the change is a comment, then the hash here. An
    older build would be called in the new way otherwise, and make other messages in silence."""
    digest = hashlib.sha256()
    for path in sorted((NATIVE / "src").glob("*.rs")):
        digest.update(path.read_bytes())
    assert (native.INTERFACE, digest.hexdigest()[:8]) == INTERFACE
