"""The errors that the consumers share: each says what happened, where, and what the operator can do."""

from __future__ import annotations

from dataclasses import dataclass


class ConsumerError(Exception):
    """Ends the consumer with a text for the operator; `exit_code` is what the process returns."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a config file: the file, the key (dotted; empty for the whole file) and a sentence."""

    file: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.key}: {self.text}" if self.key else f"{self.file}: {self.text}"


class SettingsError(ConsumerError):
    """The configuration can't be used. Holds all problems found, not only the first."""

    exit_code = 2

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(problem) for problem in problems))


class UnreachableError(ConsumerError):
    """A server did not answer at the start, or refused us."""


class MessageError(Exception):
    """A message is not one of ours or can't be applied. Its text is the reason in the dead letter."""


class BulkError(Exception):
    """Elasticsearch did not take a bulk request, and no document is to blame: the batch fails and is tried again."""
