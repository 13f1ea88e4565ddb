"""The errors that the consumers share: each says what happened, where, and what the operator can do."""

from __future__ import annotations

from typing import Any


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


class ApiError(Exception):
    """Elasticsearch answered with an error. `body` is the decoded answer, `product` its header x-elastic-product."""

    def __init__(self, status: int, body: Any, product: str = "") -> None:
        self.status, self.body, self.product = status, body, product
        super().__init__(f"{status} {self.reason}".strip())

    @property
    def type(self) -> str:
        """The server's name of the error, such as index_not_found_exception; "" when it gave none."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("type") or "") if isinstance(error, dict) else ""

    @property
    def reason(self) -> str:
        """What the answer says of its error."""
        return reason_of(self.body)


class TransportError(Exception):
    """Elasticsearch gave no answer: `host` is the address that was asked, `reason` says why in few words."""

    def __init__(self, host: str, reason: str) -> None:
        self.host, self.reason = host, reason
        super().__init__(f"{reason} ({host})")


def reason_of(body: Any) -> str:
    """What an answer of Elasticsearch says of its error."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return str(error or body or "")[:300]
    caused = error.get("caused_by")
    parts = [error.get("type"), error.get("reason"), caused.get("reason") if isinstance(caused, dict) else None]
    return ": ".join(str(part) for part in parts if part)
