"""Checks differences again until no writes of them are in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from headrace_spark.checkpoint import ConsumerPosition
from headrace_spark.verify.differences import Compared, Difference, Differences
from headrace_spark.verify.report import Report

log = structlog.get_logger("headrace_spark.verify.verify")
CHECKS = 5
"""Checks of a difference before it counts as changing."""

_IDLE = 2
"""Checks in which nothing could be repaired, and nothing has changed."""


class Settle(NamedTuple):
    """When to check again, in seconds: after `pause`, and when the consumer has read what Kafka had then, which is
    waited for at most `wait` seconds. With `repair` what stays the same is repaired."""

    pause: float
    wait: float
    repair: bool


class Rechecks:
    """The repeated checks of one index."""

    def __init__(self, settle: Settle, consumer: ConsumerPosition, report: Report) -> None:
        self._settle, self._consumer, self._report = settle, consumer, report

    @property
    def repair(self) -> bool:
        """Returns whether what stays the same is repaired."""
        return self._settle.repair

    def wait(self) -> None:
        """Waits until earlier changes are written. A consumer that did not catch up once is not waited for again."""
        time.sleep(self._settle.pause)
        if self._report.behind:
            return
        if not self._consumer.catches_up(self._settle.wait):
            self._report.behind = True
            log.warning("the consumer does not catch up: what differs may be on its way", seconds=self._settle.wait)

    def at(self, found: Iterable[Difference], check: Callable[[Differences], Compared]) -> int:
        """Repeats `check`, which receives the differences and returns those that remain. A difference that is the same
        in two checks counts; one that differs each time is in flight. Adds to the report; returns how many were
        repaired."""
        before = {one.place: one for one in found}
        settled: Differences = {}
        repaired = idle = 0
        for _ in range(CHECKS):
            if not before:
                break
            self.wait()
            compared = check(before)
            repaired += compared.repaired
            now = {one.place: one for one in compared.differences}
            same = {place: one for place, one in now.items() if one.stays(before.get(place))}
            if self.repair:  # the next check sees a repaired one as equal
                before, settled = now, same
                # In the first of two such checks the versions of deletes were found.
                idle = 0 if compared.repaired or len(same) < len(now) else idle + 1
                if idle == _IDLE:
                    break
            else:
                before = {place: one for place, one in now.items() if place not in same}
                settled |= same
        self._report.repaired += repaired
        self._report.unsettled += len(before.keys() - settled.keys())
        self._report.add(settled.values())
        return repaired
