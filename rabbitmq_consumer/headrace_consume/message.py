"""A message, and the headers about one that could not be applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace_documents.dead_letters import MAX_REASON

REASON = "headrace-dead-reason"
ATTEMPTS = "headrace-dead-attempts"
RESENDS = "headrace-dead-resends"
FIRST = "headrace-dead-first"
LAST = "headrace-dead-last"
EXCHANGE = "headrace-dead-exchange"
ROUTING_KEY = "headrace-dead-routing-key"
QUEUE = "headrace-dead-queue"

Headers = Mapping[str, Any]


@dataclass(slots=True)
class Message:
    """A message as the broker delivered it. `properties` is the client's own object, unchanged."""

    tag: int
    body: bytes
    exchange: str
    routing_key: str
    headers: dict[str, Any]
    message_id: str = ""
    redelivered: bool = False
    properties: Any = None
    attempts: int = field(default=0)
    """How many times it was tried since it was delivered."""
    reason: str = ""
    """Why it could not be applied the last time."""

    @property
    def id(self) -> str:
        """Returns headrace's id of the message; for another publisher's message its AMQP message id, which may be
        empty."""
        return text(self.headers.get("headrace-id")) or self.message_id

    @property
    def identity(self) -> str:
        """Returns what distinguishes a repeated message from a new one, or "".

        The id alone does not: after RESET BINARY LOGS a source assigns GTIDs and offsets a second time. `_pos`
        increases even then, and a message that is sent again has the same one."""
        name = self.id
        return f"{name}@{text(self.headers.get('headrace-pos'))}" if name else ""

    @property
    def resends(self) -> int:
        """Returns how many times a scan has sent it again."""
        return number(self.headers, RESENDS)


def dead_headers(message: Message, queue: str, now: datetime | None = None) -> dict[str, Any]:
    """Returns the message's headers with ours: why it is dead, how many times it was tried, since when, and where it
    came from."""
    moment = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    headers = message.headers
    return {
        **headers,
        REASON: message.reason[:MAX_REASON],
        ATTEMPTS: number(headers, ATTEMPTS) + message.attempts,
        RESENDS: message.resends,
        FIRST: headers.get(FIRST) or moment,
        LAST: moment,
        # A message that was sent again came by the default exchange: the first one is of interest.
        EXCHANGE: headers.get(EXCHANGE, message.exchange),
        ROUTING_KEY: headers.get(ROUTING_KEY, message.routing_key),
        QUEUE: queue,
    }


def resent_headers(headers: Headers, resends: int) -> dict[str, Any]:
    """Returns the headers of a dead letter that goes back to the queue."""
    return {**headers, RESENDS: resends}


def own_headers(headers: Headers) -> dict[str, Any]:
    """Returns the message's own headers: those without ours."""
    return {name: value for name, value in headers.items() if not name.startswith("headrace-dead-")}


def number(headers: Headers, name: str) -> int:
    """Returns a header as a number that is not below 0; anything else counts as 0."""
    value = headers.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)
