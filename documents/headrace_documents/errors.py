"""The errors that the consumers share: each says what happened, where, and what the operator can do."""

from __future__ import annotations


class ConsumerError(Exception):
    """Ends the consumer with a text for the operator; `exit_code` is what the process returns."""

    exit_code = 1


class SettingsError(ConsumerError):
    """The configuration can't be used. Holds all problems found, not only the first."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class UnreachableError(ConsumerError):
    """A server did not answer at the start, or refused us."""


class MessageError(Exception):
    """A message is not one of ours or can't be applied. Its text is the reason in the dead letter."""


class BulkError(Exception):
    """Elasticsearch did not take a bulk request, and no document is to blame: the batch fails and is tried again."""
