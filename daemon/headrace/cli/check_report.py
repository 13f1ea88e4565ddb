"""Prints the findings of `headrace check`: lines for people, the SQL alone, or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from headrace.cli.common import print_json
from headrace.errors import named
from headrace.ports.finding import Finding, Level
from headrace_common.printable import printable_lines


class Report:
    """Prints a line for each finding, and its remedy below."""

    def __init__(self) -> None:
        self.counts: Counter[Level] = Counter()

    def add(self, destination: str, subject: str, findings: Sequence[Finding], server: str = "") -> None:
        """Takes the findings about one subject; `destination` is "" for what all share, `server` the address of the
        server that statements are for."""
        for finding in findings:
            self.counts[finding.level] += 1
            sentence, remedy = named(finding.sentence, destination), named(finding.remedy, destination)
            self.report(destination, subject, server, replace(finding, sentence=sentence, remedy=remedy))

    def report(self, destination: str, subject: str, server: str, finding: Finding) -> None:
        """Prints one finding, or keeps it for the end."""
        about = destination or subject
        if subject.startswith("standby"):
            about = f"{destination}, {subject}"
        print(printable_lines(f"{about}: {finding.level:<7} {finding.name}: {finding.sentence}"))
        for fixes in (*finding.sql, finding.remedy):
            if fixes:
                print(printable_lines(f"{' ' * len(about)}          -> {fixes}"))

    def end(self) -> int:
        """Prints the rest; returns the exit status."""
        print("not all is well: see the lines with wrong" if self.status else "all is well")
        return self.status

    @property
    def status(self) -> int:
        """Returns the exit status: 1 if something is wrong."""
        return 1 if self.counts[Level.WRONG] else 0


class SqlReport(Report):
    """Prints only the statements, once for each server, below a comment that names destination and server."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[tuple[str, str]] = set()
        self._about = ""

    def report(self, destination: str, subject: str, server: str, finding: Finding) -> None:
        about = f"-- {destination}: {subject if server in subject else f'{subject} {server}'}"
        for statement in finding.sql:
            if (server, statement) in self._said:
                continue
            if about != self._about:
                print(about)
            self._about = about
            self._said.add((server, statement))
            print(statement)

    def end(self) -> int:
        return self.status


class JsonReport(Report):
    """Prints one JSON object at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._reported: list[dict[str, Any]] = []

    def report(self, destination: str, subject: str, server: str, finding: Finding) -> None:
        self._reported.append({"destination": destination or None, "subject": subject, **asdict(finding)})

    def end(self) -> int:
        print_json({"findings": self._reported, "summary": {str(level): self.counts[level] for level in Level}})
        return self.status
