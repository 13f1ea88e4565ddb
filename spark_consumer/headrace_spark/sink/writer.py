"""The writer of Spark's tasks: it waits while Elasticsearch is unavailable, and counts what it does."""

from __future__ import annotations

import gc
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from headrace_documents import logs
from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter, Rejected, Swap
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import BulkError
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.settings import Settings
from headrace_spark.sink.conflicts import Watch
from headrace_spark.sink.dual_write import DualWrites
from headrace_spark.status.counting import Counts
from headrace_spark.status.problems import elasticsearch_cause
from headrace_spark.status.report_socket import Address
from headrace_spark.status.task_reports import Reporter

T = TypeVar("T")
MAX_WAIT = 5.0
"""Seconds between two attempts of a task, and so the maximum delay after Elasticsearch is back."""


class PatientWriter(BulkWriter):
    """Retries for `patience` seconds, None forever: a batch that waits keeps its progress, and one that fails begins
    again with all of its tasks. Versions make a repeated write harmless."""

    def __init__(
        self,
        settings: ElasticsearchSettings,
        cluster: Cluster,
        counts: Counts,
        reporter: Reporter | None = None,
        *,
        patience: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(settings, cluster, sleep)
        self._hosts = settings.hosts
        self._counts, self._patience = counts, patience
        self._reporter = reporter or Reporter()
        self._failing_since = 0.0
        self._documents = 0

    def write(self, actions: Sequence[Action]) -> list[Rejected]:
        """Applies the actions; returns those that were rejected. Raises BulkError when patience is over."""
        self._documents = len(actions)
        return self._patiently(lambda: super(PatientWriter, self).write(actions))

    def swap(self, swaps: Sequence[Swap]) -> tuple[list[int], list[Rejected]]:
        """Writes documents as BulkWriter does. Raises BulkError when patience is over."""
        self._documents = len(swaps)
        return self._patiently(lambda: super(PatientWriter, self).swap(swaps))

    def ask(self, index: str, request: Callable[[], T]) -> T:
        """Returns the result of a request about an index. Raises BulkError when patience is over."""
        found = self._patiently(lambda: super(PatientWriter, self).ask(index, request))
        self._wrote()
        return found

    def _patiently(self, do: Callable[[], T]) -> T:
        wait = 0.5
        while True:
            try:
                return do()
            except BulkError as error:
                self._failed(str(error))
                if self._at_end:
                    raise BulkError(elasticsearch_cause(str(error), self._hosts)) from None
            self._sleep(wait)
            wait = min(MAX_WAIT, 2 * wait)

    @property
    def _at_end(self) -> bool:
        return self._patience is not None and time.monotonic() - self._failing_since >= self._patience

    def _failed(self, why: str) -> None:
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        self._counts.numbers["retries"] += 1
        cause = elasticsearch_cause(why, self._hosts)
        self._reporter.waiting(cause, seconds=now - self._failing_since, documents=self._documents)

    def _again(self, attempt: int, actions: int, seconds: float, why: str) -> None:
        self._failed(why)
        if self._at_end:
            raise BulkError(why)

    def _bulk(self, lines: list[Any]) -> Any:
        began = time.monotonic()
        answer = super()._bulk(lines)
        self._counts.bulk.observe(time.monotonic() - began)
        return answer

    def _wrote(self) -> None:
        self._reporter.goes_on(waited=bool(self._failing_since))
        self._failing_since = 0.0


_THRESHOLDS = (50_000, 10, 10)
"""Thresholds of Python's collector. Tens of thousands of objects wait for a bulk request, and reference counts free
them; with the defaults the collector took a fifth of a task's time."""


class Context(NamedTuple):
    """The context of tasks besides the settings."""

    batch: int | None = None
    """The number of the batch."""
    dual_writes: DualWrites = {}  # noqa: RUF012
    watch: Watch = Watch()
    patience: float | None = None
    """That of PatientWriter."""
    reports: Address | None = None
    """Where they report to."""


NO_CONTEXT = Context()


class SparkTask(ABC):
    """A task. Settings and context are sent with it; it opens its connections where it runs."""

    def __init__(self, settings: Settings, context: Context) -> None:
        self._settings, self._context = settings, context

    def __call__(self, given: Iterable[Any]) -> Iterator[Any]:
        # JSON, whatever the driver writes: it reads these lines, and writes them in its own form.
        logs.configure("json")
        gc.set_threshold(*_THRESHOLDS)
        logging.getLogger("elastic_transport").setLevel(logging.ERROR)  # failures are in reports
        elastic, counts = self._settings.elasticsearch, Counts()
        with Cluster(elastic) as cluster:
            reporter = Reporter(self._context.reports)
            writer = PatientWriter(elastic, cluster, counts, reporter, patience=self._context.patience)
            yield from self._run(given, writer, counts)

    @abstractmethod
    def _run(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[Any]:
        """Does the work."""
