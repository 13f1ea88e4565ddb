"""Watches how far a destination's position is from being purged by its source, and warns before it is."""

from __future__ import annotations

from headrace.destination.parts import Context
from headrace.errors import HeadraceError
from headrace.model import Position
from headrace.ports.source import Retention, Source

_TROUBLE = "retention"


class RetentionWarning:
    """Looks when it is told to, on a connection of its own: the stream may have none, and then it matters most."""

    def __init__(self, context: Context, source: Source) -> None:
        self._status, self._log, self._source = context.status, context.log, source
        self._limit = context.settings.source.retention_warning

    async def look(self, position: Position) -> int | None:
        """Writes what it finds into the status. What can't be found out is None there, and no error. Returns the bytes
        of binlog from the position to the end."""
        try:
            found = await self._source.retention(position)
        except HeadraceError as error:
            self._log.debug("the source's binlogs can't be looked at", error=str(error))
            self._status.retention.forget()
            return None  # a warning stays until a look says otherwise
        self._status.retention.note(found)
        self._warn(position, found)
        return found.behind

    def _warn(self, position: Position, found: Retention) -> None:
        text = found.warning(position, self._limit)
        if not text:
            if self._status.clear(_TROUBLE) and found.share is not None:
                self._log.info(
                    "the position is far enough from what the source purges again", share=round(found.share, 3)
                )
            return
        before = _TROUBLE in self._status.troubles
        self._status.trouble(_TROUBLE, text)
        if not before:
            told = self._status.troubles[_TROUBLE]
            self._log.warning("retention is running out", warning=told, seconds=found.seconds, bytes=found.bytes)
