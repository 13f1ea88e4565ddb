"""The running consumer fills indexes again when a column has changed its type: one at a time, in a thread of the
driver, with the consumer's own session, while batches continue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.mapping_conflicts import Conflict, Wanted
from headrace_documents.errors import ApiError, BulkError, ConsumerError, MessageError, TransportError
from headrace_spark.dead_letters.held import HeldMessages, release
from headrace_spark.errors import QueryError
from headrace_spark.rebuild.aliases import behind
from headrace_spark.rebuild.filling import Target
from headrace_spark.rebuild.rebuild import Rebuild, RefusedRows, Wishes
from headrace_spark.settings import Settings, SourceSettings, reindexed
from headrace_spark.sink.conflicts import Watch
from headrace_spark.sink.dual_write import DualWrites, Notes
from headrace_spark.source.connection import Source, SourceError
from headrace_spark.status.counting import Counts, Sighting
from headrace_spark.status.problems import elasticsearch_cause, problem_of
from headrace_spark.status.status import Status


class Planned:
    """What the tables of the source need."""

    def __init__(self, settings: Settings, source: SourceSettings, context: SparkContext, cluster: Cluster) -> None:
        self._settings, self._source, self._context, self._cluster = settings, source, context, cluster

    def conflicts(self, name: str, tables: Iterable[str], *, chosen: bool) -> frozenset[Conflict]:
        """Returns the fields that would have another type in a new index; `tables` are those whose rows have shown a
        conflict. Fields with a configured type count only with `chosen`. Raises SourceError, ApiError, TransportError,
        UnfitTable and MessageError."""
        [index] = [one for one in self._settings.index if one.name.lower() == name]
        there = self._cluster.call("GET", (name, "_mapping"), missing={})
        if not there:
            return frozenset()
        target = Target(self._settings, name, name)
        with closing(Source(self._source, self._context._jvm)) as source:
            found = target.tables(source)
        if missing := sorted(set(tables) - {str(one) for one in found}):
            raise SourceError(
                f"the source shows no table {missing[0]}, whose rows have come: has the account of [source] SELECT on "
                "it, and is it the server of the stream?"
            )
        wanted = Wanted(self._settings.elasticsearch, index)
        of_columns = [properties for table in found for properties in target.properties(table)]
        conflicts = wanted.conflicts(name, of_columns, [one["mappings"] for one in there.values()])
        return frozenset(one for one in conflicts if chosen or one.field not in wanted.chosen)


log = structlog.get_logger(__name__)

CONSUMER = "consumer"
"""The initiator of a rebuild, in its note."""
POLL = 1.0
"""Seconds between two checks for a due index."""
RECHECK = 5.0
"""Seconds between two checks of a rebuild by another process."""
AGAIN = 60.0
"""Seconds until the source is asked again whether there is a conflict now."""
PAUSES = (1.0, 300.0)
"""The first pause after a failure, and the longest one."""
_CLOSE = 5.0
_ROWS = "rows that were refused before"


@dataclass
class _State:
    """The state of one index. Times are of the monotonic clock."""

    due: float = 0.0
    """When it is checked; 0: at once."""
    check: bool = True
    """It must be checked: at the start for a rebuild that was begun, or messages that are held."""
    news: int = 0
    """Batches that have found something."""
    sightings: set[Sighting] = field(default_factory=set)
    held: int = 0
    """Messages, as far as this process has counted them."""
    conflict: bool = False
    """Something must be done, as far as known."""
    settled: frozenset[Conflict] = frozenset()
    """What the tables do not need, or what was given up."""
    filled: frozenset[Conflict] = frozenset()
    """Conflicts for which the index was filled the last time."""
    settled_until: float = 0.0
    given_up: frozenset[Conflict] = frozenset()
    tries: int = 0
    problem: str = ""
    run: str | None = None
    """Our run that the note last had; None before the first check."""
    note: dict[str, Any] = field(default_factory=dict)
    refused_run: str = ""
    """Our run that waits for an operator's decision about rows that the new index refuses."""
    rebuild: Rebuild | None = None

    def page(self, status: str) -> dict[str, Any]:
        """Returns the content for /health."""
        rebuild = self.rebuild
        return {
            "state": status,
            "conflicts": sorted(str(one.conflict) for one in self.sightings) or self.note.get("conflicts", []),
            "held": self.held,
            **(rebuild.progress if rebuild is not None else {}),
            "problem": self.problem or None,
            "tries": self.tries,
        }


class Reindexing:
    """The thread. `save` writes dead letters. Does nothing without indexes that must be filled again."""

    def __init__(
        self, settings: Settings, spark: SparkSession, status: Status, save: Callable[[DataFrame], None]
    ) -> None:
        self._settings, self._spark, self._status, self._save = settings, spark, status, save
        self._cluster = Cluster(settings.elasticsearch)
        self._notes = Notes(self._cluster)
        self._lock = threading.Lock()
        self._states = {name: _State() for name in reindexed(settings)}
        self._end, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the checks."""
        if self._states:
            self._status.rebuilds = self.pages
            self._thread = threading.Thread(target=self._run, name="refill indexes", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread, without waiting for a job of Spark's: the progress is recorded and continued later."""
        self._end.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE)
        self._cluster.close()

    # -- what batches ask and tell ------------------------------------------------------------------------------------

    def watch(self, dual_writes: DualWrites) -> Watch:
        """Returns the facts for the tasks of a batch."""
        with self._lock:
            for name in self._states.keys() & dual_writes.keys():
                self._states[name].check = True  # a rebuild by the command revokes what was given up
            known = {name for name, state in self._states.items() if state.conflict} | dual_writes.keys()
            given_up = frozenset[Conflict]().union(*(one.given_up for one in self._states.values()))
        return Watch(frozenset(known), given_up)

    def seen(self, counts: Counts) -> None:
        """Takes what a batch has found."""
        now = time.monotonic()
        with self._lock:
            for name, state in self._states.items():
                new = {one for one in counts.conflicts if one.conflict.target == name}
                held = counts.held.get(name, 0)
                state.held += held
                open_ones = {one for one in new if one.conflict not in state.given_up}
                quiet = now < state.settled_until and all(one.conflict in state.settled for one in open_ones)
                if held or (not quiet and any(not one.chosen for one in open_ones)):
                    state.sightings |= open_ones
                    state.conflict = state.check = True
                    state.news += 1
                    self._wake.set()

    def pages(self) -> dict[str, dict[str, Any]]:
        """Returns the indexes with a conflict for /health."""
        with self._lock:
            found = {}
            for name, state in self._states.items():
                if state.conflict:
                    found[name] = state.page("failed" if state.problem else "filling" if state.rebuild else "waiting")
            return found

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._end.is_set():
            for name, state in self._states.items():
                if state.check and state.due <= time.monotonic() and not self._end.is_set():
                    self._try(name, state)
            self._wake.wait(POLL)
            self._wake.clear()

    def _try(self, name: str, state: _State) -> None:
        try:
            done = self._advance(name, state, Wishes(wait=float("inf"), by=CONSUMER))
        except Exception as error:
            if not self._end.is_set():
                self._failed(name, state, error)
            return
        finally:
            state.rebuild = None
        with self._lock:
            if state.problem:
                log.info("an index can be refilled again", index=name, tries=state.tries)
            state.problem, state.tries = "", 0
            state.due = 0.0 if done else time.monotonic() + RECHECK

    def _failed(self, name: str, state: _State, error: Exception) -> None:
        reason, first, longest = self._reason(error), *PAUSES
        with self._lock:
            pause = min(longest, first * 2.0 ** min(state.tries, 10))
            state.tries += 1
            new = reason != state.problem
            state.problem, state.due = reason, time.monotonic() + pause
        report = log.error if new else log.debug
        report("an index can't be refilled; it is tried again", index=name, reason=reason, seconds=round(pause),
             tries=state.tries)  # fmt: skip

    def _reason(self, error: Exception) -> str:
        if isinstance(error, (ApiError, TransportError, BulkError)):
            return elasticsearch_cause(str(error), self._settings.elasticsearch.hosts)
        if isinstance(error, (ConsumerError, MessageError)):
            return str(error)
        return str(problem_of(error, self._settings))

    def finish(self) -> None:
        """Does all that is due, while no batch runs. Raises QueryError."""
        for name, state in self._states.items():
            while state.check:
                try:
                    done = self._advance(name, state, Wishes(offline=True, by=CONSUMER))
                except Exception as error:
                    raise QueryError(
                        f"index {name} can't be refilled: {self._reason(error)}. The messages that wait for it are "
                        "held, and the next start goes on"
                    ) from None
                if not done:
                    break

    def _advance(self, name: str, state: _State, wishes: Wishes) -> bool:
        """Does what is due for one index; returns false if that is another process's. Raises what prevents it."""
        elastic = self._settings.elasticsearch
        held = HeldMessages(self._cluster, elastic, name)
        note = self._notes.get(name)
        if note is not None:
            state.note = {"conflicts": [str(Conflict(*one)) for one in note.get("conflicts") or ()]}
            state.conflict = True
            if note.get("run") == state.refused_run:
                raise RefusedRows(state.problem)
            if note.get("by") != CONSUMER or state.run not in (None, note.get("run")):
                state.run = state.run or ""
                return False
            return self._fill(name, state, replace(wishes, resume=True))
        state.run = ""
        with self._lock:
            sightings, news = frozenset(state.sightings), state.news
        count, seen = held.count(), frozenset(one.conflict for one in sightings)
        given_up = held.given_up()
        with self._lock:
            state.held, state.given_up, state.conflict = count, given_up, bool(count or seen)
        if count or seen:
            noted = held.conflicts()
            seen = seen | noted or frozenset({Conflict(name, _ROWS, "", "")})
            found = frozenset[Conflict]()
            if not seen <= given_up:
                try:
                    found = self._planned(name, sightings, chosen=count > 0)
                except Exception:
                    held.note(seen)  # so that it can be given up before it has begun
                    raise
                if not found:
                    held.clear()
            if found and found == state.filled:
                log.error(
                    "a new index has other types than the columns ask for, so it is not filled once more: does a "
                    "template of the cluster say them?",
                    index=name, conflicts=[str(one) for one in sorted(found)],
                )  # fmt: skip
                held.give_up(found)
                return True
            if not found <= given_up:
                log.warning("an index is to be refilled", index=name, conflicts=[str(one) for one in sorted(found)])
                state.filled = frozenset()
                done = self._fill(name, state, replace(wishes, conflicts=found | seen))
                state.filled = found if done else frozenset()
                return done
            self._release(name, count)
        with self._lock:
            if state.news == news:
                state.sightings, state.conflict, state.held, state.check = set(), False, 0, False
                state.settled, state.settled_until = seen, time.monotonic() + AGAIN
        return True

    def _planned(self, name: str, sightings: frozenset[Sighting], *, chosen: bool) -> frozenset[Conflict]:
        planned = Planned(self._settings, self._source, self._spark.sparkContext, self._cluster)
        return planned.conflicts(name, {one.table for one in sightings}, chosen=chosen)

    @property
    def _source(self) -> SourceSettings:
        """Uses fewer readers than there are cores, so that batches get some at once."""
        source = self._settings.source
        assert source is not None  # else the configuration is an error
        most = max(1, self._spark.sparkContext.defaultParallelism - 1)
        return source.model_copy(update={"readers": min(source.readers, most)})

    def _fill(self, name: str, state: _State, wishes: Wishes) -> bool:
        rebuild = Rebuild(self._settings, self._source, self._spark, self._cluster, name, wishes)
        state.rebuild, state.run = rebuild, rebuild.run_id
        try:
            rebuild.run()
        except RefusedRows as error:
            # Nothing changes by itself: a command that resumes it or gives it up takes the note from us.
            state.refused_run = rebuild.run_id
            raise error from None
        except ConsumerError:
            with suppress(ApiError, TransportError):
                note = self._notes.get(name)
                if note is None or note.get("run") != rebuild.run_id:
                    return False  # given up, or continued by another process
            raise
        with self._lock:
            state.sightings, state.held = set(), 0
        return True

    def _release(self, name: str, count: int) -> None:
        if not count:
            return
        there = behind(self._cluster, name)
        present = there.indexes if there.is_alias else ()
        made = release(self._spark, self._settings.elasticsearch, self._cluster, name, present, self._save)
        counts = Counts()
        counts.numbers["dead_letters"] = made
        self._status.counted(counts)
        log.warning("messages that were held are dead letters", index=name, letters=made)
