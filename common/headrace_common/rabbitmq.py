"""Shared by both ends of a RabbitMQ queue: URLs of connections, arguments of queues, texts of errors."""

from __future__ import annotations

import asyncio
from typing import Any

from aio_pika.exceptions import DeliveryError, InvalidFrameError, PublishError
from yarl import URL

from headrace_common.rabbitmq_section import QueueType, RabbitMqSection

# Without a limit of its own, RabbitMQ 4 drops a message of a quorum queue that was returned 20 times, as listing dead
# letters does, and a long outage of Elasticsearch. No value for "none" is accepted by all versions.
_DELIVERY_LIMIT = 2_000_000_000


def connection_url(section: RabbitMqSection, host: str, port: int, name: str) -> URL:
    """Returns the URL of a node; `name` is shown in the broker's list of connections."""
    return URL.build(
        scheme="amqp" if section.tls == "disabled" else "amqps",
        host=host,
        port=port,
        user=section.user,
        password=section.password.get_secret_value(),
        path=f"/{section.virtual_host}",
        query={"heartbeat": str(max(1, round(section.heartbeat))), "name": name},
    )


def queue_arguments(kind: QueueType) -> dict[str, Any]:
    """Returns the arguments of a durable queue. The first declaration decides, so all must be equal."""
    return {"x-queue-type": kind} | ({"x-delivery-limit": _DELIVERY_LIMIT} if kind == "quorum" else {})


def error_text(error: BaseException | None) -> str:
    """Returns the error in words; "" for an end without a reason. AMQP errors have the broker's code and text as
    arguments."""
    if error is None or isinstance(error, asyncio.CancelledError | TimeoutError):
        return ""
    if isinstance(error, PublishError):
        return f"it came back, no queue takes it ({getattr(error.frame, 'reply_text', '')})"
    if isinstance(error, DeliveryError):
        return "the broker refused it (nack)"
    said = [str(part) for part in error.args if part not in (None, "") and not isinstance(part, type)]
    words = " ".join(said) or type(error).__name__
    if isinstance(error, InvalidFrameError) and "Connection.Close" in words:
        return f"the virtual host was refused ({words})"
    return words
