"""Keeps the archive of a destination's source, also while the destination is paused or waits."""

from __future__ import annotations

import asyncio

from headrace.destination.acknowledging import note_waiting
from headrace.destination.dependencies import Context
from headrace.errors import HeadraceError, SourceError
from headrace.ports.archive import ArchiveProgress, Archiver, ArchiveUse
from headrace.tasks import again

_TROUBLE = "archive"
_UNTIL = "a transaction is archived"
_POLL = 1.0
"""Seconds between two attempts to take the archive's lock."""


async def keep_archive(context: Context, archiver: Archiver, use: ArchiveUse) -> None:
    """Runs the archiver while this destination holds the archive's lock, and again after it fails, until cancelled.
    Destinations that share the archive wait for the lock meanwhile."""
    status, log = context.status, context.log
    waits = context.settings.source.semi_sync == "archive"

    async def known_epoch() -> int:
        return 0

    def report(progress: ArchiveProgress | None) -> None:
        status.clear(_TROUBLE)
        if progress is None:  # another destination or daemon keeps it
            status.archive.forget()
        else:
            status.archive.note(progress)
        if waits:
            note_waiting(context, progress.unacknowledged if progress else "", _UNTIL)

    async def keep() -> None:
        try:
            while not await use.lock.try_acquire(known_epoch):
                report(None)
                await asyncio.sleep(_POLL)
            await archiver.run(report, use.needed)
        except HeadraceError as error:
            if not isinstance(error, SourceError):
                archiver.note_failure(error.operator_text(context.name))
            text = f"the binlog is not archived: {error.operator_text(context.name)}"
            if status.trouble(_TROUBLE, text):
                log.warning("the archive is not kept", error=error.operator_text(context.name))
            if waits:
                note_waiting(context, str(error.args[0]), _UNTIL)
        finally:
            await use.lock.release()
            status.archive.forget()

    await again(keep)
