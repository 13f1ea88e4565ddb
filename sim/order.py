"""The order of messages where some were refused: it is kept for each row, and by the last message of each change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView

Key = tuple[str, str]
"""Table and key."""
_NOTHING = dict[str, None]().keys()


class KeyOrder:
    """Where each change of each row came last. A message that is sent again after later ones about its row is followed
    by those again, so a consumer that applies all of them has the newest row in the end."""

    def __init__(self) -> None:
        self._last: dict[Key, dict[str, tuple[int, int, int]]] = {}
        """By row and message id: offset, `_pos` and epoch, in the order of offsets."""
        self._highest: dict[Key, int] = {}

    def newer(self, rows: Iterable[tuple[Key, int]]) -> bool:
        """Returns whether no row of a message has had one with a higher `_pos`."""
        return all(pos >= self._highest.get(key, 0) for key, pos in rows)

    def made_again(self, id_: str, rows: Iterable[tuple[Key, int]], epoch: int) -> bool:
        """Returns whether a message that has come before is of a later run than that one: it was read again, and waited
        behind one that was parked."""
        return all(self._last.get(key, {}).get(id_, (0, 0, epoch))[2] < epoch for key, _ in rows)

    def take(
        self, id_: str, offset: int, rows: Iterable[tuple[Key, int]], epoch: int, read: KeysView[str] = _NOTHING
    ) -> None:
        """Takes a message with the `_pos` of each of its rows. A run that sends a change again does not send what
        snapshots `read` for earlier ones, by the ids of those: it reads the row again."""
        for key, pos in rows:
            self._highest[key] = max(pos, self._highest.get(key, 0))
            changes = self._last.setdefault(key, {})
            if changes.pop(id_, None) is not None:
                for other in [other for other in read & changes.keys() if changes[other][2] < epoch]:
                    del changes[other]
            changes[id_] = offset, pos, epoch

    def moved(self, read: KeysView[str]) -> None:
        """Forgets the rows that snapshots have read, by their ids: after a move they do not come again, as all changes
        after the position do."""
        for changes in self._last.values():
            for id_ in read & changes.keys():
                del changes[id_]

    def violations(self) -> Iterator[str]:
        """Yields what is wrong."""
        for key, changes in self._last.items():
            highest, where = -1, ""
            for id_, (offset, pos, _) in changes.items():
                if pos < highest:
                    yield f"{id_} of the row {key} comes last at {offset}, after the later change {where}"
                else:
                    highest, where = pos, f"{id_} at {offset}"
