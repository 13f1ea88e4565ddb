"""What `headrace check` finds of a source, a sink, a store or a rule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. A `note` is well enough to stream, and could be better."""

    name: str
    ok: bool
    sentence: str
    remedy: str = ""
    note: bool = False
