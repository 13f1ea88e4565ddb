"""Checks the checkpoint before Spark reads it: can this query continue from it, and with the same topics?

In addition to Spark's own files it has `headrace.json`: the ids that Kafka gave the topics. A topic that was deleted
and recreated has the old name and another id, and the offsets of the checkpoint have no meaning for it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace_spark.errors import RefusedError, first_line
from headrace_spark.settings import Settings
from headrace_spark.source.kafka import offsets_of
from headrace_spark.source.kafka_client import KafkaClient

FORMAT = 1
"""Of headrace.json."""
_NAME = "headrace.json"
_KNOWN = "v1"
"""The version of Spark's offset log, of Spark 3 and 4."""


class Checkpoint:
    """In a directory, or at a URL that Spark can write to."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._location = location
        self._files: _Local | _Hadoop = _Hadoop(spark, location) if "://" in location else _Local(Path(location))

    def done(self, topics: Iterable[str]) -> dict[tuple[str, int], int]:
        """Returns the offsets after the last finished batch; none if no batch is. Raises RefusedError if it is not one
        of these topics, or can't be read."""
        last = self._last("offsets")
        text = self._read(f"offsets/{last}") if last is not None else ""
        if not text:
            return {}
        offsets = self._offsets(text)
        if strange := sorted({topic for topic, _ in offsets} - set(topics)):
            raise RefusedError(
                f"the checkpoint {self._location} is one of topic {', '.join(strange)}, which [kafka] topics does not "
                "have",
                "Name the topic again, or give this query a checkpoint of its own: then all messages are read from the "
                "beginning, which does no harm",
            )
        committed = self._last("commits")
        if committed is None:
            return {}
        return offsets if committed == last else self._offsets(self._read(f"offsets/{committed}"))

    def _offsets(self, text: str) -> dict[tuple[str, int], int]:
        version, _, rest = text.partition("\n")
        offsets = offsets_of(rest.strip().splitlines()[-1]) if rest.strip() else {}
        if version != _KNOWN or not offsets:
            raise self.unusable(f"its offsets are in the form {version[:20]!r}")
        return offsets

    def unusable(self, why: str) -> RefusedError:
        """Returns the error for a checkpoint that Spark can't continue from."""
        return RefusedError(
            f"the checkpoint {self._location} can't be used: {why}",
            "It is damaged, or of another version of Spark or of another query. Move it away: all messages are read "
            "from the beginning, which does no harm",
        )

    def check_topics(self, ids: Mapping[str, str]) -> None:
        """Compares the topics' ids with the recorded ones, and records new ones. Raises RefusedError."""
        text = self._read(_NAME)
        try:
            noted: dict[str, Any] = json.loads(text) if text else {"format": FORMAT, "topics": {}}
            known: dict[str, str] = dict(noted["topics"])
            newer = noted["format"] > FORMAT
        except (ValueError, KeyError, TypeError):
            raise self.unusable(f"{_NAME} is damaged") from None
        if newer:
            raise self.unusable(f"{_NAME} is of a newer version of headrace")
        for topic, identity in ids.items():
            if known.get(topic, identity) != identity:
                raise RefusedError(
                    f"topic {topic} was deleted and made again: the offsets in the checkpoint {self._location} are of "
                    "the old one",
                    "Move the checkpoint away, and the new topic is read from its beginning; what the old one had and "
                    "was not read is lost",
                )
        if {**known, **ids} != known:
            self._files.write(_NAME, json.dumps({"format": FORMAT, "topics": {**known, **ids}}, sort_keys=True))

    def _last(self, folder: str) -> int | None:
        try:
            return max((int(name) for name in self._files.names(folder) if name.isdigit()), default=None)
        except Exception as error:
            raise self.unusable(first_line(error)) from None

    def _read(self, name: str) -> str:
        try:
            return self._files.read(name)
        except Exception as error:
            raise self.unusable(first_line(error)) from None


class _Local:
    """A directory of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self, folder: str) -> list[str]:
        """Returns the files' names; none if the folder does not exist."""
        place = self._folder / folder
        return os.listdir(place) if place.is_dir() else []

    def read(self, name: str) -> str:
        """Returns the text; "" if the file does not exist."""
        file = self._folder / name
        return file.read_text("utf-8") if file.exists() else ""

    def write(self, name: str, text: str) -> None:
        """Writes the file completely or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = self._folder / f".{name}.new"
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._folder / name)


class _Hadoop:
    """A checkpoint that Spark reaches by a URL. A file appears there when it is closed, or the store has no partial
    files at all."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._root = self._jvm.org.apache.hadoop.fs.Path(location)
        context: Any = spark.sparkContext._jsc
        self._system = self._root.getFileSystem(context.hadoopConfiguration())

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    def names(self, folder: str) -> list[str]:
        """Returns the files' names; none if the folder does not exist."""
        path = self._path(folder)
        return [one.getPath().getName() for one in self._system.listStatus(path)] if self._system.exists(path) else []

    def read(self, name: str) -> str:
        """Returns the text; "" if the file does not exist."""
        path = self._path(name)
        if not self._system.exists(path):
            return ""
        stream = self._system.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Writes the file."""
        stream = self._system.create(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()


_POLL = 0.5


class ConsumerPosition:
    """The consumer's checkpoint, and the ends of its topics."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        self._settings, self._spark = settings, spark

    def ends(self) -> dict[tuple[str, int], int]:
        """Returns the present ends of the topics' partitions. Raises Java's errors."""
        with KafkaClient(self._spark.sparkContext._jvm, self._settings.kafka) as client:
            return dict(client.topics().ends)

    def is_past(self, ends: dict[tuple[str, int], int]) -> bool:
        """Returns whether all messages before these are done. Raises RefusedError."""
        checkpoint = Checkpoint(self._spark, self._settings.spark.checkpoint_location())
        done = checkpoint.done(self._settings.kafka.topics)
        return all(done.get(key, 0) >= end for key, end in ends.items())

    def catches_up(self, wait: float) -> bool:
        """Waits until what Kafka has now is done, for at most `wait` seconds."""
        ends, limit = self.ends(), time.monotonic() + wait
        while not self.is_past(ends):
            if time.monotonic() >= limit:
                return False
            time.sleep(_POLL)
        return True
