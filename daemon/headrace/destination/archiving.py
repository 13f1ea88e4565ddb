"""Keeps the archive of a destination's source, also while the destination is paused or waits."""

from __future__ import annotations

import asyncio

from headrace import runtime
from headrace.destination.dependencies import Context
from headrace.errors import HeadraceError
from headrace.ports.archive import ArchiveProgress, Archiver, ArchiveUse

_TROUBLE = "archive"
_SEMI_SYNC = "semi_sync"
_AGAIN = (1.0, 60.0)
"""Seconds after a failure until the next attempt: at first, and at most."""
_POLL = 1.0
"""Seconds between two attempts to take the archive's lock."""
_PROVED = 30.0
"""Seconds of work after which earlier failures do not count."""


async def keep_archive(context: Context, archiver: Archiver, use: ArchiveUse) -> None:
    """Runs the archiver while this destination holds the archive's lock, and again after it fails, until cancelled.
    Destinations that share the archive wait for the lock meanwhile."""
    status, log, wait = context.status, context.log, _AGAIN[0]

    async def known_epoch() -> int:
        return 0

    def report(progress: ArchiveProgress) -> None:
        status.archive.note(progress)
        status.clear(_TROUBLE)
        if not progress.unacknowledged:
            status.clear(_SEMI_SYNC)
            return
        text = f"the source does not wait until a transaction is archived: {progress.unacknowledged}"
        if status.trouble(_SEMI_SYNC, text, remedy="see docs/archive.md#semi-synchronous-acknowledgement"):
            log.warning("the source does not wait for the archive", why=progress.unacknowledged)

    while True:
        began = runtime.monotonic()
        try:
            while not await use.lock.try_acquire(known_epoch):
                status.clear(_TROUBLE)  # another destination or daemon keeps it
                status.clear(_SEMI_SYNC)
                await asyncio.sleep(_POLL)
            began = runtime.monotonic()
            await archiver.run(report, use.needed)
        except HeadraceError as error:
            text = f"the binlog is not archived: {error.operator_text(context.name)}"
            if status.trouble(_TROUBLE, text):
                log.warning("the archive is not kept", error=error.operator_text(context.name))
        finally:
            await use.lock.release()
            status.archive.forget()
        if runtime.monotonic() - began > _PROVED:
            wait = _AGAIN[0]
        await asyncio.sleep(wait)
        wait = min(_AGAIN[1], 2 * wait)
