"""Errors that close a channel or a connection, with the codes and texts of RabbitMQ.

Codes: rabbitmq.com/amqp-0-9-1-reference, "Reply code". Texts begin with the code's name, as the broker writes them."""

from __future__ import annotations

_NAMES = {
    320: "CONNECTION_FORCED",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
}


class Refusal(Exception):
    """Closes the channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, f"{_NAMES[code]} - {text}"[:255]


class Failure(Refusal):
    """Closes the connection."""
