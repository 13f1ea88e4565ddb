"""Metrics that adapters publish about themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric of a source or a sink, shown in /metrics as `headrace_<name>` with the destination as its label; the
    name of a counter gets `_total`. All measures of one name must have the same text and kind. One that has the name of
    a metric of headrace is left out."""

    name: str
    text: str
    """A sentence: what it counts, and its unit."""
    value: float
    kind: Literal["counter", "gauge"] = "gauge"
