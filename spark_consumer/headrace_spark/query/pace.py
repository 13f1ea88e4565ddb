"""How many messages a batch may have: Spark's Kafka source limits the number of messages, not of bytes."""

from __future__ import annotations


class Pace:
    """Converts bytes to messages by their mean size: first of a sample of waiting messages, then of what was read.

    The number is an option of the query, so a new one needs a restart of the query, which takes about a second. It is
    done if the number is wrong by a factor of more than two."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._mean = 0.0
        self.limit = most
        """The limit of the running query."""

    def seen(self, messages: int, size: int) -> None:
        """Records the bytes of messages."""
        if messages <= 0:
            return
        mean = size / messages
        # The mean of a batch with few messages is not reliable.
        weight = min(1.0, messages / 100) if self._mean else 1.0
        self._mean += (mean - self._mean) * weight

    def wanted(self) -> int:
        """Returns what the limit should be."""
        if not self._mean or not self._most_bytes:
            return self._most
        return max(1, min(self._most, int(self._most_bytes / self._mean)))

    def begin(self) -> int:
        """Returns the limit of a query that begins."""
        self.limit = self.wanted()
        return self.limit

    @property
    def wrong(self) -> bool:
        """Returns whether the query should restart with another limit."""
        wanted = self.wanted()
        return wanted * 2 < self.limit or wanted > self.limit * 2
