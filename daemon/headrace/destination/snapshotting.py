"""Runs the snapshots of one run, as a task alongside the stream: begins and retries them, and reports their
progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace import runtime
from headrace.destination.dependencies import Context
from headrace.errors import HeadraceError, SourceError
from headrace.ports.source import ChangeStream, Unprepared
from headrace.ports.tables import Lacks, TableReader
from headrace.rules.patterns import PatternTooSlow
from headrace.snapshot.merge import SnapshotMerge
from headrace.snapshot.progress import SnapshotRate
from headrace.snapshot.reading import SnapshotReading
from headrace.snapshot.throttle import Throttle
from headrace.snapshots import Snapshot, TableName
from headrace.tasks import first, set_within

_TROUBLE = "snapshot"
_REPORT = 10.0
"""Seconds between two log lines about one snapshot."""
_AGAIN = (1.0, 30.0)
"""Seconds before the first retry after an error, and the maximum; each wait is twice as long as the one before."""


class Snapshotting:
    """Runs snapshots. An error here never ends the stream, except for a value that is not understood: it becomes a
    trouble, and the snapshot is retried."""

    def __init__(
        self,
        context: Context,
        merge: SnapshotMerge,
        stream: ChangeStream,
        new_reader: Callable[[], TableReader],
        left_out: Callable[[Lacks, Iterable[TableName]], None],
        unprepared: Unprepared | None = None,
    ) -> None:
        """`left_out`: see SnapshotReading; `unprepared`: see Receiver."""
        source = context.settings.source
        self._merge, self._status, self._log = merge, context.status, context.log
        self._rows = context.settings.filter.rows
        self._throttle, self._rate = Throttle(source), SnapshotRate()
        self._reading = SnapshotReading(
            merge,
            stream,
            new_reader,
            self._throttle,
            self._rate,
            context.log,
            parallel=source.snapshot_parallelism,
            seconds=source.snapshot_chunk_seconds,
            left_out=left_out,
            unprepared=unprepared,
        )
        self._reported_at = runtime.monotonic()

    async def run(self) -> None:
        """Runs until it is cancelled. Raises NotUnderstood."""
        wait = _AGAIN[0]
        while True:
            self._merge.changed.clear()
            snapshot = self._merge.current
            if snapshot is None:
                self._status.clear(_TROUBLE)
                await self._merge.changed.wait()
                continue
            self._log.info("tables are read", **_named(snapshot), rows_so_far=snapshot.rows)
            self._reported_at = runtime.monotonic()
            try:
                ended = await first({"read": self._reading.run(snapshot), "changed": self._merge.changed.wait()})
            except (SourceError, PatternTooSlow) as error:
                if self._fail(snapshot, error):
                    await set_within(self._merge.changed, wait)
                    wait = min(2 * wait, _AGAIN[1])
                else:
                    wait = _AGAIN[0]
                continue
            wait = _AGAIN[0]
            self._status.clear(_TROUBLE)
            # After a command it may have ended because another snapshot is running; if not, the next turn finds it
            # done.
            if "read" in ended and not self._merge.changed.is_set():
                done: Snapshot = ended["read"]
                self._merge.finish(done)
                self._log.info(
                    "all tables that the account may read are read",
                    **_named(done),
                    tables=done.tables_done,
                    rows=done.rows,
                )

    def _fail(self, snapshot: Snapshot, error: HeadraceError) -> bool:
        """Returns whether it is retried. A resync that can't be made is abandoned, since an operator has requested it
        and can do so again; a first snapshot is not."""
        if snapshot.kind == "resync" and not error.retriable:
            self._merge.finish(snapshot, f"given up: {error}")
            self._status.note_error(error)
            self._log.error("the resync is given up", **_named(snapshot), error=self._status.last_error)
            return False
        if self._status.trouble(_TROUBLE, f"tables can't be read: {error}"):
            reported = self._status.troubles[_TROUBLE]
            self._log.warning("tables can't be read; it is tried again", **_named(snapshot), error=reported)
        return True

    def report(self) -> None:
        """Reports the progress in status and log; called each second. A snapshot is done once that is stored."""
        position = self._status.stored.position
        shown = self._merge.snapshots or (position.snapshots if position is not None else ())
        waits = self._throttle.reason if self._rows else "[filter] rows is off"
        facts = self._rate.facts(shown, waits)
        self._status.snapshots.show(facts)
        now = runtime.monotonic()
        if facts is not None and facts["state"] != "paused" and now - self._reported_at > _REPORT:
            self._reported_at = now
            kept = ("rows", "percent", "rows_per_second", "eta_seconds", "tables_done", "tables_left", "reason")
            self._log.info("reading tables", id=facts["id"], **{key: facts[key] for key in kept if facts[key]})


def _named(snapshot: Snapshot) -> dict[str, str]:
    named = {"id": snapshot.id, "kind": snapshot.kind, "only": snapshot.tables, "where": snapshot.where}
    return {key: text for key, text in named.items() if text}
