"""Exchanges, bindings, and the way of a routing key to queues."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

TYPES = ("direct", "fanout", "topic", "headers")
PREDEFINED = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.topic": "topic",
}


@lru_cache(maxsize=10_000)
def matches(pattern: str, key: str) -> bool:
    """Returns whether a topic exchange's binding takes a routing key: * is one word, # any number of them."""
    return _match(tuple(pattern.split(".")), tuple(key.split(".")) if key else ())


def _match(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_match(pattern[1:], words[at:]) for at in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _match(pattern[1:], words[1:])


class Exchange:
    """One exchange, with its bindings in the order in which they were made."""

    def __init__(self, name: str, kind: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self.name, self.kind, self.durable, self.auto_delete, self.arguments = (
            name,
            kind,
            durable,
            auto_delete,
            arguments,
        )
        self.bindings: dict[tuple[str, str], dict[str, Any]] = {}
        """By queue and routing key, the arguments."""

    def route(self, key: str, headers: dict[str, Any] | None) -> list[str]:
        """Returns the queues that get a message, each once. `headers` are those of the message, for a headers
        exchange."""
        found: dict[str, None] = {}
        for (queue, pattern), arguments in self.bindings.items():
            if self._takes(pattern, arguments, key, headers or {}):
                found[queue] = None
        return list(found)

    def _takes(self, pattern: str, arguments: dict[str, Any], key: str, headers: dict[str, Any]) -> bool:
        match self.kind:
            case "fanout":
                return True
            case "topic":
                return matches(pattern, key)
            case "headers":
                wanted = {name: value for name, value in arguments.items() if not name.startswith("x-")}
                fits = [name in headers and value in (None, headers[name]) for name, value in wanted.items()]
                return any(fits) if arguments.get("x-match", "all").startswith("any") else all(fits)
        return pattern == key
