"""Figures that adapters publish of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a source or a sink, shown in /metrics as `headrace_<name>` with the destination as its label; the
    name of a counter gets `_total`. All measures of one name have the same text and kind; one with a name of headrace's
    own is left out."""

    name: str
    text: str
    """A sentence: what it counts, and its unit."""
    value: float
    kind: Literal["counter", "gauge"] = "gauge"
