"""The consumers' shared errors: each says what happened, where, and what the operator can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class ConsumerError(Exception):
    """Ends the consumer with a text for the operator; `exit_code` is what the process returns."""

    exit_code = 1


class SettingsError(ConsumerError):
    """The configuration can't be used. Contains all problems found, not only the first."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class UnreachableError(ConsumerError):
    """A server did not answer at the start, or refused us."""


class MessageError(Exception):
    """A message is not one of ours or can't be applied. Its text is the reason in the dead letter."""


class BulkError(Exception):
    """Elasticsearch did not accept a bulk request, and no document is the cause: the batch fails and is retried."""


class ApiError(Exception):
    """Elasticsearch answered with an error. `body` is the decoded answer, `product` its header x-elastic-product."""

    def __init__(self, status: int, body: Any, product: str = "") -> None:
        self.status, self.body, self.product = status, body, product
        super().__init__(f"{status} {self.reason}".strip())

    @property
    def type(self) -> str:
        """Returns the server's name of the error, such as index_not_found_exception; "" if it gave none."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return str(error.get("type") or "") if isinstance(error, dict) else ""

    @property
    def reason(self) -> str:
        """Returns the reason in the answer."""
        return reason_of(self.body)


class TransportError(Exception):
    """Elasticsearch gave no answer: `host` is the address, `reason` says why in few words."""

    def __init__(self, host: str, reason: str) -> None:
        self.host, self.reason = host, reason
        super().__init__(f"{reason} ({host})")


def reason_of(body: Any) -> str:
    """Returns the reason in an answer of Elasticsearch."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return str(error or body or "")[:300]
    caused = error.get("caused_by")
    parts = [error.get("type"), error.get("reason"), caused.get("reason") if isinstance(caused, dict) else None]
    return ": ".join(str(part) for part in parts if part)


def ask(index: str, request: Callable[[], T]) -> T:
    """Returns the result of a request about an index. Raises BulkError: no document is the cause, and the batch is
    retried."""
    try:
        return request()
    except (ApiError, TransportError) as error:
        raise BulkError(f"index {index} can't be read: {error}") from None
