"""Arguments of declarations: which are known, what they may be, and how the broker names a difference (RabbitMQ's
rabbit_amqqueue.erl, rabbit_misc.erl and the queue types' own lists; texts as of version 3)."""

from __future__ import annotations

from typing import Any

from sim.rabbitmq.refusals import Refusal

_CLASSIC = (
    *("x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length"),
    *("x-max-length-bytes", "x-max-priority", "x-overflow", "x-queue-mode", "x-single-active-consumer", "x-queue-type"),
)
_QUORUM = (
    *("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-expires", "x-max-length"),
    *("x-max-length-bytes", "x-overflow", "x-single-active-consumer", "x-queue-type", "x-delivery-limit"),
    "x-message-ttl",
)
"""What is compared with a queue that exists, in this order."""
_NUMBERS = ("x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-delivery-limit")
_OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
_TYPES = ("classic", "quorum", "stream")
_KIND = "x-queue-type"


def name_in(arguments: dict[str, Any], key: str, where: str) -> str | None:
    """Returns the name of an exchange among the arguments. Raises Refusal if it is none."""
    value = arguments.get(key)
    if value is not None and not isinstance(value, str):
        raise Refusal(406, f"invalid type '{kind_of(value)}' for arg '{key}' in {where}")
    return value


def require_valid(arguments: dict[str, Any], where: str, *, durable: bool) -> None:
    """Raises Refusal for a new queue with values that are not allowed."""

    def refuse(key: str, text: str) -> None:
        raise Refusal(406, f"invalid arg '{key}' for {where}: {text}")

    kind = arguments.get(_KIND, "classic")
    if not isinstance(kind, str):
        refuse(_KIND, f"{{unacceptable_type,{kind_of(kind)}}}")
    if kind not in _TYPES:
        refuse(_KIND, f"\"unsupported queue type '{kind}'\"")
    if kind != "classic" and not durable:
        raise Refusal(406, f"invalid property 'non-durable' for {where}")
    for key in _NUMBERS:
        value = arguments.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            refuse(key, f'"expected integer, got {kind_of(value)}"')
        if value < 0:
            refuse(key, f"{{value_negative,{value}}}")
    if arguments.get("x-overflow", _OVERFLOWS[0]) not in _OVERFLOWS:
        refuse("x-overflow", "invalid_overflow")


def require_same(present: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    """Raises Refusal for arguments that differ from those of the queue that exists."""
    kinds = [arguments.get(_KIND, "classic") for arguments in (present, wanted)]
    for key in _QUORUM if kinds[0] == "quorum" else _CLASSIC:
        if key != _KIND or kinds[0] != kinds[1]:
            same_argument(where, key, present.get(key), wanted.get(key))


def kind_of(value: Any) -> str:
    """Returns the name that the broker has for the type of a value in a table."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):  # as pamqp encodes it
        sizes = ((7, "byte"), (15, "short"), (31, "signedint"))
        return next((name for bits, name in sizes if -(1 << bits) <= value < 1 << bits), "long")
    return "longstr" if isinstance(value, str) else "table"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def same(where: str, key: str, present: Any, wanted: Any) -> None:
    """Raises Refusal for a declaration that differs from what is there."""
    if present != wanted:
        texts = f"received '{_text(wanted)}' but current is '{_text(present)}'"
        raise Refusal(406, f"inequivalent arg '{key}' for {where}: {texts}")


def same_argument(where: str, key: str, present: Any, wanted: Any) -> None:
    """Raises Refusal for an argument that differs, or that only one of them has."""
    if present is not None and wanted is not None:
        same(where, key, present, wanted)
    elif present is not wanted:
        received, current = (
            "none" if one is None else f"the value '{_text(one)}' of type '{kind_of(one)}'" for one in (wanted, present)
        )
        raise Refusal(406, f"inequivalent arg '{key}' for {where}: received {received} but current is {current}")
