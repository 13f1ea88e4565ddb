"""What tests of snapshots share: a table of many rows, sessions that change it, and conditions on what is shown."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.site import Site
from tests.support import eventually, read_jsonl, replay, replay_by_pos


class Writers:
    """Sessions that insert, update, delete and change keys of a table until they are stopped."""

    def __init__(self, site: Site, count: int = 2, keys: int = 40_000) -> None:
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._keys = keys
        sessions = [site.session() for _ in range(count)]
        self._threads = [threading.Thread(target=self._run, args=(run, n, count)) for n, run in enumerate(sessions)]
        for thread in self._threads:
            thread.start()

    def _run(self, run: Any, number: int, of: int) -> None:
        """Each has keys of its own, so that no two wait for each other."""
        try:
            step = 0
            while not self._stop.is_set():
                step += 1
                key = step * 7919 * of % self._keys // of * of + number
                run(
                    (
                        f"INSERT INTO t (id, name) VALUES ({key}, 'new') ON DUPLICATE KEY UPDATE name = 'again {step}'",
                        f"UPDATE t SET name = 'changed {step}' WHERE id IN ({key}, {key + of}, {key + 2 * of})",
                        f"DELETE FROM t WHERE id = {key}",
                        f"UPDATE IGNORE t SET id = {key + of * 100} WHERE id = {key}",
                    )[step % 4]
                )
        except BaseException as error:
            self._failed.append(error)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed, self._failed


TEN = " UNION ALL ".join(f"SELECT {n} AS n" for n in range(10))


def fill(site: Site, rows: int = 20_000, table: str = "t") -> None:
    """A table with so many rows, of ids that are even."""
    digits = "abcde"
    number = " + ".join(f"{10**power} * {name}.n" for power, name in enumerate(digits))
    sources = ", ".join(f"({TEN}) AS {name}" for name in digits)
    site.run(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, name VARCHAR(40)) CHARACTER SET utf8mb4",
        f"INSERT INTO {table} SELECT 2 * ({number}), 'first' FROM {sources} WHERE {number} < {rows}",
    )


def assert_equal(site: Site, out: Path, table: str = "t") -> None:
    """By the order of the messages, and by `_pos` alone."""
    wanted = site.table(table)

    def messages() -> list[dict[str, Any]]:
        return [one for one in read_jsonl(out) if one["table"] == table]

    eventually(lambda: replay(messages()) == wanted)
    assert replay_by_pos(messages()) == wanted


def done(status: dict[str, Any]) -> bool:
    return status["state"] == "STREAMING" and status["snapshot"] is None


def slowly(rows: int) -> str:
    """More lines of [source], for a snapshot that is still under way when the test looks."""
    return f"snapshot_max_rows_per_second = {rows}\nsnapshot_chunk_seconds = 0.02\n"


def some_are_stored(status: dict[str, Any]) -> bool:
    """Whether the stored position has rows of the table that is read."""
    return any(one["open"] and one["open"][0]["rows"] for one in status["position"]["snapshots"])


def reading(rows: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a snapshot has passed so many rows."""
    return lambda status: bool(status["snapshot"]) and status["snapshot"]["rows"] >= rows
