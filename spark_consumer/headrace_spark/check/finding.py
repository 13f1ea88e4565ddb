"""Findings: what was looked at, how it is, and what mends it."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "warning", "wrong"]


class Finding(NamedTuple):
    """`about` names the thing, `text` says how it is, `remedy` what mends it, "" where nothing has to be."""

    state: State
    about: str
    text: str
    remedy: str = ""


class Findings:
    """Collects them in their order."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def ok(self, about: str, text: str) -> None:
        """Adds something that is well."""
        self.all.append(Finding("ok", about, text))

    def warn(self, about: str, text: str, remedy: str = "") -> None:
        """Adds something that works, and may do harm."""
        self.all.append(Finding("warning", about, text, remedy))

    def wrong(self, about: str, text: str, remedy: str = "") -> None:
        """Adds something that keeps a run from its work."""
        self.all.append(Finding("wrong", about, text, remedy))

    @property
    def state(self) -> State:
        """The worst."""
        states = {one.state for one in self.all}
        return "wrong" if "wrong" in states else "warning" if "warning" in states else "ok"
