"""Which acknowledgements a set of settled messages needs: one for many wherever nothing older is open."""

from __future__ import annotations

from collections.abc import Iterable


class AckWindow:
    """The delivery tags of one channel that are not acknowledged yet. Tags grow from 1 in the order of delivery."""

    def __init__(self) -> None:
        # A dict keeps the order of delivery, and a tag is taken out of its middle at no cost.
        self._open: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, tag: int) -> None:
        """A message has been delivered."""
        self._open[tag] = None

    def settle(self, tags: Iterable[int]) -> tuple[int, list[int]]:
        """Takes out what is done; returns the tag up to which all may be acknowledged at once (0: none), and those
        that need an acknowledgement of their own, because an older message is still open (it waits for a retry)."""
        settled = sorted(tag for tag in set(tags) if tag in self._open)
        for tag in settled:
            del self._open[tag]
        oldest = next(iter(self._open), None)
        if oldest is None:
            return (settled[-1] if settled else 0), []
        before = [tag for tag in settled if tag < oldest]
        return (before[-1] if before else 0), settled[len(before) :]
