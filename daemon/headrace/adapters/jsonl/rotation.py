"""The rotated files of the jsonl sink: their names, and which of them are kept."""

from __future__ import annotations

import os
import re
import time

import structlog

from headrace import runtime

log = structlog.get_logger(__name__)


class RotatedFiles:
    """The folder's files that were made from one path: out.jsonl -> out-20261122T101500Z-000001.jsonl. Their names sort
    in the order in which they were written. Raises OSError."""

    def __init__(self, path: str) -> None:
        self._folder, name = os.path.split(path)
        self._stem, self._suffix = os.path.splitext(name)
        self._pattern = re.compile(
            rf"{re.escape(self._stem)}-([0-9]{{8}}T[0-9]{{6}}Z)-([0-9]{{6}}){re.escape(self._suffix)}"
        )
        files = self._list()
        self._last = files[-1][:2] if files else ("", 0)

    def _list(self) -> list[tuple[str, int, str]]:
        """Returns stamp, number and name of each, the oldest first."""
        found = map(self._pattern.fullmatch, os.listdir(self._folder))
        return sorted((one[1], int(one[2]), one[0]) for one in found if one is not None)

    def paths(self) -> list[str]:
        """Returns the paths of the existing ones, the oldest first."""
        return [os.path.join(self._folder, name) for _, _, name in self._list()]

    def next_path(self, now: float) -> str:
        """Returns an unused path that sorts after all others, even if the clock was set back."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        self._last = (stamp, 1) if stamp > self._last[0] else (self._last[0], self._last[1] + 1)
        path = os.path.join(self._folder, f"{self._stem}-{self._last[0]}-{self._last[1]:06}{self._suffix}")
        return path if not os.path.lexists(path) else self.next_path(now)

    def prune(self, keep: int) -> None:
        """Removes all but the newest `keep` files; 0 keeps all. Never raises: a file that can't be removed is logged,
        tried again with the next one, and stops no row."""
        try:
            gone = self._list()[:-keep] if keep else []
            for _, _, name in gone:
                os.unlink(os.path.join(self._folder, name))
            if gone:
                log.info("rotated files were removed, as keep_files says", count=len(gone), last=gone[-1][2])
        except OSError as error:
            log.error("rotated files can't be removed", folder=self._folder, error=str(error))

    def sync_folder(self) -> None:
        """Makes a new or renamed file durable."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            runtime.sync(descriptor)
        finally:
            os.close(descriptor)
