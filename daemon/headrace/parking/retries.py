"""Messages that a broker refuses, and those that wait for them: when each is sent again, or parked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from headrace.errors import SinkRejected
from headrace.model import MessageBatch
from headrace.parking.ordering import Blocks
from headrace.parking.settings import RetrySettings
from headrace.parking.window import DONE, HELD, PARKED, SENT, UNSENT, Entry, Refusals, Window
from headrace.ports.sink import Parking

log = structlog.get_logger(__name__)

_HELD_LIMIT = 10
"""Multiple of max_in_flight that may be held back before publishing waits."""
_EARLY = 0.001
"""Seconds that a timer may fire too early."""


@dataclass(slots=True, eq=False)
class _Held:
    """A message that waits: it was refused, or must come after one that was refused or is parked."""

    entry: Entry
    index: int
    refusals: int = 0
    """Only those in its own turn: a message that was refused while it waits for another must be sent again anyway."""
    reason: str = ""
    due: float = 0.0
    """On the monotonic clock."""
    hopeless: bool = False
    """Whether it must be parked."""
    after: int = 0
    """It may be parked once all is answered that was handed over before this tag; 0: not known yet."""


class Retries:
    """Keeps what is held back in the order it was published. A refused message is sent again alone. Those after it that
    share a row or table with it follow once it is confirmed, even if they had been confirmed before, so that the last
    message about a row is always the newest. Nothing here waits."""

    def __init__(
        self, settings: RetrySettings, window: Window, parking: Parking | None, scope: Callable[[MessageBatch], str]
    ) -> None:
        self._settings, self._window, self._parking, self._scope = settings, window, parking, scope
        self._held: list[_Held] = []
        self._blocks = Blocks()
        """What the held messages are about."""
        self._burst, self._burst_end = 1, 0
        """How many following messages may be sent again at a time, and the tag after those that were: twice as many
        once all of these are answered, and one after a refusal. A queue that was just full may not have space for
        all."""
        self._hopeless: set[str] = set()
        """Addresses where a message was refused permanently and none was confirmed since."""
        self._reported: set[str] = set()
        """Those where any message was refused, and the log has said so."""
        self.impatient = False
        """Whether any answer of the broker may allow something to be sent."""
        self.due: float | None = None
        """When the next refused message is sent again, on the monotonic clock."""

    def takes(self, batch: MessageBatch) -> bool:
        """Returns whether a new batch may be published, before or after what is held. One whose messages can't be
        distinguished would have to wait as a whole."""
        if batch.units is None:
            return not self._held
        return len(self._held) < _HELD_LIMIT * self._settings.max_in_flight

    def sift(self, entry: Entry, indexes: Sequence[int]) -> Sequence[int]:
        """Returns those of the new messages that may be sent; the others are held."""
        parking, blocks = self._parking, self._blocks
        if not self._held and (parking is None or parking.empty):
            return indexes
        scope, free = self._scope(entry.batch), []
        for index in indexes:
            unit = entry.unit(index)
            if blocks.blocks(scope, unit) or (parking is not None and parking.blocked(scope, unit)):
                entry.hold(index)
                blocks.add(scope, unit)
                self._held.append(_Held(entry, index))
            else:
                free.append(index)
        return free

    # -- refusals --------------------------------------------------------------------------------------------------

    def take(self, refused: Refusals, now: float) -> None:
        """Holds back what was refused, and what must come after it. Raises SinkRejected after the last retry, if
        nothing may be parked."""
        held = {(one.entry, one.index): one for one in self._held}
        self._held, self._blocks = order, blocks = [], Blocks()
        self._burst, self._burst_end = 1, 0
        for entry in self._window.entries:
            scope = self._scope(entry.batch)
            for index, state in enumerate(entry.states):
                if state in (UNSENT, PARKED):
                    continue
                unit = entry.unit(index)
                behind = blocks.blocks(scope, unit)
                one, reason = held.get((entry, index)), refused.get((entry, index), "")
                if not reason and not behind and (one is None or state == DONE):
                    continue
                if one is None:
                    one = _Held(entry, index)
                if reason or (behind and state != HELD):
                    entry.hold(index)
                if reason and not behind:
                    self._count(one, reason, now)
                order.append(one)
                blocks.add(scope, unit)

    def _count(self, held: _Held, reason: str, now: float) -> None:
        settings, batch = self._settings, held.entry.batch
        held.refusals, held.reason = held.refusals + 1, reason
        name = held.entry.name(held.index)
        if held.refusals <= settings.retries and batch.topic not in self._hopeless:
            wait = settings.retry_delay * settings.retry_factor ** (held.refusals - 1)
            held.due = now + wait
            if batch.topic not in self._reported:
                self._reported.add(batch.topic)
                log.warning(
                    "the broker refuses messages, which are tried again", topic=batch.topic, id=name, reason=reason
                )
            return
        if self._parking is None:
            raise SinkRejected(
                f"the broker refuses message {name} for {batch.topic} ({reason}), {held.refusals} times by now",
                remedy='correct what it says there; [sink] on_failure = "park" would park such messages',
            )
        held.hopeless, held.due = True, 0.0
        if batch.topic not in self._hopeless:
            log.warning("the broker refuses messages for good; they are parked", topic=batch.topic, reason=reason)
        self._hopeless.add(batch.topic)

    def confirmed(self, topic: str) -> None:
        """Records a confirmation at an address: the next refusal there may be temporary."""
        if self._reported or self._hopeless:
            self._hopeless.discard(topic)
            self._reported.discard(topic)

    # -- what goes on ----------------------------------------------------------------------------------------------

    def release(self, now: float) -> list[tuple[Entry, list[int]]]:
        """Returns what must be sent now, in order, as far as limits allow; parks what must be parked. Raises
        SinkRejected if no more may be parked."""
        kept: list[_Held] = []
        blocks, count, size, followers = Blocks(), 0, 0, 0
        ready: list[tuple[Entry, list[int]]] = []
        self.impatient, self.due = False, None
        may = self._burst if self._window.answered(self._burst_end) else 0
        for held in self._held:
            entry, index = held.entry, held.index
            if entry.states[index] == DONE:
                continue
            scope, unit = self._scope(entry.batch), entry.unit(index)
            keeps = True
            if entry.states[index] == SENT:
                pass
            elif blocks.blocks(scope, unit):
                held.after = 0
            elif held.hopeless or (self._parking is not None and self._parking.blocked(scope, unit)):
                keeps = not self._park(held, scope, self._window.next_tag + count)
            elif held.due <= now + _EARLY:
                keeps = held.refusals > 0  # it is sent alone, and those after it once it is confirmed
                if (keeps or followers < may) and self._window.takes(count + 1, size + entry.sizes[index]):
                    count, size, followers = count + 1, size + entry.sizes[index], followers + (not keeps)
                    if ready and ready[-1][0] is entry:
                        ready[-1][1].append(index)
                    else:
                        ready.append((entry, [index]))
                else:
                    self.impatient = keeps = True
            else:
                self.due = min(held.due, self.due or held.due)
            if keeps:
                blocks.add(scope, unit)
                kept.append(held)
        self._held, self._blocks = kept, blocks
        if followers:
            self._burst, self._burst_end = min(2 * self._burst, 1 << 16), self._window.next_tag + count
        return ready

    def _park(self, held: _Held, scope: str, next_tag: int) -> bool:
        """Parks a message unless an earlier one that shares a row with it may still be parked: all that was handed
        over, and will be, up to `next_tag` must be answered first."""
        assert self._parking is not None
        held.after = held.after or next_tag
        if held.after > self._window.next_tag or not self._window.answered(held.after):
            self.impatient = True
            return False
        self._parking.park(scope, held.entry.batch, held.index, held.reason, held.refusals)
        held.entry.park(held.index)
        return True
