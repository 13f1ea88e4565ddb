"""The last fence: a thread that ends the process if a lapsed lease's transports are not aborted in time."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headrace import runtime
from headrace.lease import Lease

EXIT_STATUS = 75
"""EX_TEMPFAIL: the service manager must start the daemon again."""
_TICK = 0.25
_ASLEEP = 1.0
"""A tick that took this many seconds longer than requested means that the process was stopped, and the loop too."""


@dataclass(slots=True, eq=False)
class Cover:
    """One user of a lease, as the thread sees it. `note` records where the loop hangs, and returns it as part of a
    sentence; "" if it does not concern this user."""

    lease: Lease
    note: Callable[[], str]
    awake: float = 0.0
    """Seconds that the loop has run since the lease lapsed."""
    noted: str | None = None
    """The result of `note`, once it was called."""


class Watchdog:
    """Watches limited leases; starts with the first. A loop that hangs, or a transport that can't be aborted, must not
    outlive the session by which others know us: a dead process is the surest fence."""

    def __init__(self) -> None:
        self._covers: tuple[Cover, ...] = ()
        self._runtime, self._watches = runtime.current(), False

    def cover(self, lease: Lease, note: Callable[[], str] = str) -> Cover:
        """Watches `lease` until uncover(). `note`: see Cover."""
        cover = Cover(lease, note)
        if lease.limited:
            self._covers = (*self._covers, cover)  # a new tuple: the thread iterates over the old one
            if not self._watches:
                self._watches = True
                self._runtime.watch(_TICK, self.tick, "lease watchdog")
        return cover

    def uncover(self, cover: Cover) -> None:
        """Stops watching: nothing of its user can leave any more."""
        self._covers = tuple(one for one in self._covers if one is not cover)

    def tick(self, passed: float) -> None:
        """Executes one tick, `passed` seconds after the one before."""
        step = min(passed, _TICK) if passed > _TICK + _ASLEEP else passed
        for cover in self._covers:
            if cover.lease.deadline > runtime.monotonic():
                cover.awake, cover.noted = 0.0, None
                continue
            cover.awake += step
            if cover.noted is None and cover.awake > cover.lease.margin / 2:
                cover.noted = _noted(cover)  # early enough to be sent before the end
            if cover.awake > cover.lease.margin:
                where = (
                    ", ".join(one.noted for one in self._covers if one.noted) or "outside of any destination's binlog"
                )
                self._runtime.end(EXIT_STATUS, partial(_report, where))
                return


def _noted(cover: Cover) -> str:
    try:
        return cover.note()
    except Exception as error:  # the process has to end, whatever the error is
        return f"{type(error).__name__}: {error}"


def _report(where: str) -> None:
    """Prints what hangs, and where. Does not log: what hangs may hold the log's lock."""
    print(
        f"headrace: the event loop hangs ({where}), and a lapsed lease was not honoured in time; the process ends. "
        "What it does:",
        file=sys.stderr,
        flush=True,
    )
    faulthandler.dump_traceback(sys.__stderr__ or 2)
