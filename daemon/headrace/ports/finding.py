"""What `headrace check` reports of a source, a sink, a store or a rule."""

from __future__ import annotations

from headrace.errors import HeadraceError, guided
from headrace_common.finding import Finding, Level, ok, warning, wrong

__all__ = ["Finding", "Level", "failed", "ok", "problem", "warning", "wrong"]


def failed(name: str, error: HeadraceError) -> Finding:
    """Returns the finding for a check that ended in an error."""
    return wrong(name, str(error.args[0]), guided(error.remedy, error.section or error.reason))


def problem(name: str, text: str) -> Finding:
    """Returns the finding for an error text. The part after an arrow is the remedy."""
    sentence, _, remedy = text.partition(" -> ")
    return wrong(name, sentence, remedy)
