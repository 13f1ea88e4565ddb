"""What all functions that Spark sends to its tasks have in common."""

from __future__ import annotations

import gc
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from headrace_documents import logs
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_spark.batch.writing import PatientWriter
from headrace_spark.outages.report_socket import Address
from headrace_spark.outages.reports import Reporter
from headrace_spark.settings.settings import Settings
from headrace_spark.status.counting import Counts

_THRESHOLDS = (50_000, 10, 10)
"""Of Python's collector. What waits for a bulk request are tens of thousands of objects that reference counts free;
with the defaults the looks at them took a fifth of a task's time."""


class SparkTask(ABC):
    """The settings travel with it; the connections are made over there. `patience` is that of PatientWriter, `reports`
    where it reports to."""

    def __init__(self, settings: Settings, patience: float | None, reports: Address | None = None) -> None:
        self._settings, self._patience, self._reports = settings, patience, reports

    def __call__(self, given: Iterable[Any]) -> Iterator[Any]:
        # JSON, whatever the driver writes: it reads these lines, and writes them in its own form.
        logs.configure("json")
        gc.set_threshold(*_THRESHOLDS)
        logging.getLogger("elastic_transport").setLevel(logging.ERROR)  # what fails is told by reports
        elastic, counts = self._settings.elasticsearch, Counts()
        with Cluster(elastic) as cluster:
            writer = PatientWriter(elastic, cluster, counts, Reporter(self._reports), patience=self._patience)
            yield from self._run(given, writer, counts)

    @abstractmethod
    def _run(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[Any]:
        """Does the work."""
