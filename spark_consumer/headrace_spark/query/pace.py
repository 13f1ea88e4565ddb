"""How many messages a batch may have: Spark's Kafka source knows a number of messages, and no number of bytes."""

from __future__ import annotations


class Pace:
    """Makes messages of bytes by their mean size: first of a sample of what waits, then of what was read.

    The number is an option of the query, so a new one needs the query to begin again, which takes about a second. That
    is done when it is wrong by more than twice.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._mean = 0.0
        self.limit = most
        """Of the query that runs now."""

    def seen(self, messages: int, size: int) -> None:
        """So many messages had so many bytes."""
        if messages <= 0:
            return
        mean = size / messages
        # Of a batch with few messages the mean says little.
        weight = min(1.0, messages / 100) if self._mean else 1.0
        self._mean += (mean - self._mean) * weight

    def wanted(self) -> int:
        """What the limit should be."""
        if not self._mean or not self._most_bytes:
            return self._most
        return max(1, min(self._most, int(self._most_bytes / self._mean)))

    def begin(self) -> int:
        """The limit of a query that begins."""
        self.limit = self.wanted()
        return self.limit

    @property
    def wrong(self) -> bool:
        """Whether the query should begin again with another limit."""
        wanted = self.wanted()
        return wanted * 2 < self.limit or wanted > self.limit * 2
