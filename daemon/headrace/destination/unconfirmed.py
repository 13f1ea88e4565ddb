"""Since when messages wait for their confirmation, over all runs of a destination."""

from __future__ import annotations

import time
from collections import deque


class Unconfirmed:
    """Times are seconds on the monotonic clock."""

    def __init__(self) -> None:
        self._waiting: deque[float] = deque()
        """When each batch with messages was read, in order; of the present run."""
        self._carried = 0.0
        """Since when the oldest message of earlier runs waits, as long as no run has had one confirmed; 0 for none."""
        self.confirmed_at = 0.0
        """When the present run last had messages confirmed; 0 for never."""

    @property
    def oldest(self) -> float:
        """When the oldest unconfirmed message was read, be it by an earlier run; 0 when all is confirmed."""
        return self._carried or (self._waiting[0] if self._waiting else 0.0)

    @property
    def any(self) -> bool:
        """Whether messages that the last run has read wait, although it may have ended."""
        return bool(self._waiting)

    def begin_run(self) -> None:
        """What waited is read again by this run."""
        self._waiting.clear()
        self.confirmed_at = 0.0

    def end_run(self) -> None:
        """What waits now goes on waiting until a run has had something confirmed."""
        self._carried = self.oldest

    def read(self, at: float, batches: int) -> None:
        """Batches with messages were read at a time."""
        self._waiting.extend([at] * batches)

    def confirm(self) -> None:
        """The oldest batch with messages is confirmed."""
        self._waiting.popleft()
        self._carried, self.confirmed_at = 0.0, time.monotonic()

    def give_up(self) -> None:
        """What earlier runs left may not come again: somebody else runs the destination, or the position was moved."""
        self._waiting.clear()
        self._carried = 0.0
