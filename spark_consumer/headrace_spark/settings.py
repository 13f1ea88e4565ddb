"""The configuration of the Spark consumer: a TOML file into models. Unknown keys are errors; all are reported at
once."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator

from headrace_common.files import read_section, secrets_beside
from headrace_common.section import (
    MIB,
    HostName,
    Hosts,
    Int,
    OptionalTls,
    Seconds,
    SecondsOrOff,
    Section,
    SizeOrOff,
    Topic,
)
from headrace_common.values import parse_host_port
from headrace_documents.errors import SettingsError
from headrace_documents.indexes.settings import PLACEHOLDER, IndexSettings
from headrace_documents.settings import ElasticsearchSettings, HttpSettings, LogSettings, OnMappingConflict


class SourceSettings(OptionalTls):
    """[source]: the MySQL or MariaDB server that has the tables. Only commands that read tables need it."""

    host: HostName = Field(description="Host name or address of the server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="Its port.")
    user: str = Field(min_length=1, description="The account; needs SELECT on the tables.")
    password: SecretStr = Field(description='The account\'s password; best as "${NAME}" or "${file:/path}".')
    connect_timeout: Seconds = Field(default=10.0, description="Limit for connecting.")
    read_timeout: Seconds = Field(
        default=600.0, description="Limit for the server to begin an answer, and for the next bytes of one."
    )
    fetch_size: Int = Field(default=1000, ge=1, description="Rows that a task has in hand of an answer.")
    partition_rows: Int = Field(default=50_000, ge=100, description="Rows of a table that one task reads.")
    readers: Int = Field(default=2, ge=1, le=64, description="Tasks that read at the same time, a connection each.")

    @model_validator(mode="after")
    def _no_client_certificate(self) -> SourceSettings:
        if self.tls_certificate or self.tls_key:
            raise ValueError("tls_certificate and tls_key can't be used here: the driver reads no PEM files of ours")
        return self


_INTERVAL = re.compile(r"^\d+ +(milliseconds?|seconds?|minutes?|hours?)$")  # what Spark understands


TopicName = Annotated[Topic, Field(min_length=1)]


class KafkaSettings(Section):
    """Where the messages come from, and where those go that can't be applied."""

    bootstrap_servers: Hosts = Field(description='Brokers to begin with: "host:port", comma-separated, or a list.')
    topics: list[TopicName] = Field(min_length=1, description="The topics to subscribe to")
    starting_offsets: str = Field(
        "earliest",
        description='Where the very first start begins: "earliest", "latest", or a time such as '
        '"2026-11-22T10:00:00+00:00"; later starts go on from the checkpoint',
    )
    dead_letter_topic: TopicName = Field(description="Created when it is missing")
    fail_on_data_loss: bool = Field(
        True, description="Stop when Kafka deleted messages that were never read, instead of going on without them"
    )
    topic_timeout: SecondsOrOff = Field(60.0, description="Wait at the start for topics that are not there.")
    connect_timeout: Seconds = Field(10.0, description="Until an unreachable broker is an error at the start.")
    options: dict[str, str] = Field(
        default_factory=dict, description="Further options of the Kafka clients, e.g. security.protocol"
    )

    @field_validator("starting_offsets")
    @classmethod
    def _start(cls, value: str) -> str:
        if value not in ("earliest", "latest"):
            try:
                good = datetime.fromisoformat(value).tzinfo is not None
            except ValueError:
                good = False
            if not good:
                raise ValueError('should be "earliest", "latest", or a time with a zone: "2026-11-22T10:00:00+00:00"')
        return value

    def start_options(self) -> dict[str, str]:
        """Returns the options of Spark's source for `starting_offsets`."""
        if self.starting_offsets in ("earliest", "latest"):
            return {"startingOffsets": self.starting_offsets}
        at = datetime.fromisoformat(self.starting_offsets).timestamp()
        # A partition without a message of that time or later begins at its end.
        return {"startingTimestamp": str(round(at * 1000)), "startingOffsetsByTimestampStrategy": "latest"}

    @model_validator(mode="after")
    def _no_circle(self) -> KafkaSettings:
        if self.dead_letter_topic in self.topics:
            raise ValueError("dead_letter_topic is also one of topics: its messages would go round for ever")
        return self

    def servers(self) -> list[tuple[str, int]]:
        """Returns the bootstrap servers as (host, port)."""
        return [parse_host_port(server) for server in self.bootstrap_servers]


class SparkSettings(Section):
    """How Spark runs the query."""

    master: str = Field("local[2,4]", min_length=1, description="local[CORES,ATTEMPTS] or a cluster's URL")
    app_name: str = Field("headrace-spark", min_length=1)
    checkpoint: str = Field(min_length=1, description="Directory that remembers what has been done")
    trigger: str = Field("2 seconds", description="Time between the starts of two batches")
    max_offsets_per_trigger: Int = Field(50_000, ge=1, description="Most messages of one batch")
    max_bytes_per_trigger: SizeOrOff = Field(
        64 * MIB,
        description="Most bytes of one batch, about: made of the messages' mean size, within "
        "`max_offsets_per_trigger`; 0: no limit.",
    )
    min_partitions: Int = Field(
        0, ge=0, description="Cut a batch into at least so many tasks; 0: one a Kafka partition"
    )
    driver_memory: str = Field("1g", pattern=r"^\d+[kmgt]$", description="Heap of the driver")
    ivy: str = Field("", description="Directory for downloaded jars; empty: Spark's own, in the home directory")
    scratch: str = Field("", description="Directory for Spark's temporary files; empty: the system's")
    jars: list[str] = Field(
        default_factory=list, description="Local jars of Spark's Kafka source; nothing is downloaded"
    )
    java_log: str = Field(
        "", description="File for all that Spark's JVM logs, rolled at 20 MB; empty: none, and errors in one line each"
    )
    drain_timeout: Seconds = Field(60.0, description="What a running batch gets to finish at SIGTERM.")
    patience: Seconds = Field(
        120.0,
        description="How long `--available-now` waits for Elasticsearch or Kafka before it ends with an error. Without "
        "it the process waits for ever.",
    )
    conf: dict[str, str] = Field(default_factory=dict, description="Further Spark properties")

    @field_validator("trigger")
    @classmethod
    def _trigger(cls, value: str) -> str:
        if not _INTERVAL.match(value.strip()):
            raise ValueError(f"{value!r} is not a time like '2 seconds'")
        return value.strip()

    def checkpoint_location(self) -> str:
        """Returns the checkpoint as a URL or an absolute path: Spark's JVM runs in another directory than we do."""
        return self.checkpoint if "://" in self.checkpoint else str(Path(self.checkpoint).absolute())

    def java_log_file(self) -> str:
        """Returns the file of `java_log`, absolute; "" for none."""
        return str(Path(self.java_log).absolute()) if self.java_log else ""

    def scratch_directory(self) -> Path:
        """Returns where temporary files go; nothing in it is needed after the process has ended."""
        return Path(self.scratch or Path(tempfile.gettempdir(), f"headrace-spark-{os.getuid()}")).absolute()


class Settings(Section):
    """The whole file."""

    kafka: KafkaSettings
    elasticsearch: ElasticsearchSettings
    spark: SparkSettings
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    source: SourceSettings | None = None
    index: list[IndexSettings] = Field(
        default_factory=list,
        description="Declared indexes, [[index]] each. With any of them, other tables are passed over unless "
        "[elasticsearch] index is given",
    )

    @property
    def takes_others(self) -> bool:
        """Returns whether tables that no [[index]] names go to the index of [elasticsearch]."""
        return not self.index or "index" in self.elasticsearch.model_fields_set


class IndexFile(Section):
    """A file in the folder `indexes` next to the configuration file."""

    index: list[IndexSettings] = Field(min_length=1)


def load_settings(path: Path) -> Settings:
    """Reads a configuration file, and the files indexes/*.toml next to it. Raises SettingsError with all errors."""
    problems: list[str] = []
    settings = read_section(path, Settings, os.environ, problems)
    files = sorted((path.parent / "indexes").glob("*.toml"))
    places = [(path, one) for one in settings.index] if settings is not None else []
    for file in files:
        found = read_section(file, IndexFile, os.environ, problems, secrets_beside(path))
        places += [(file, one) for one in found.index] if found is not None else []
    first: dict[str, Path] = {}
    for file, one in places:
        if (before := first.get(one.name.lower())) is not None:
            problems.append(f"{file}: index {one.name} is declared twice, the first time in {before}")
        first.setdefault(one.name.lower(), file)
    if settings is not None:
        settings = settings.model_copy(update={"index": [one for _, one in places]})
        problems += reindex_problems(path, settings, places)
    if settings is None or problems:
        raise SettingsError(problems)
    return settings


def reindexed(settings: Settings) -> dict[str, IndexSettings]:
    """Returns the indexes that are filled again when a column has changed its type, by name."""
    return {one.name.lower(): one for one in settings.index if _conflict(settings, one) == "reindex"}


def reindex_problems(path: Path, settings: Settings, places: Sequence[tuple[Path, IndexSettings]]) -> list[str]:
    """Returns why on_mapping_conflict can't have its value, a sentence each; `places` are the indexes with their
    files."""
    elastic, what = settings.elasticsearch, 'on_mapping_conflict = "reindex"'
    wanted = [(file, one) for file, one in places if _conflict(settings, one) == "reindex"]
    found = []
    if elastic.on_mapping_conflict == "reindex" and settings.takes_others:
        found.append(
            f"{path}: elasticsearch.on_mapping_conflict: {what} is for indexes that [[index]] declares; tables that "
            "none names have an index too: set it in each [[index]]"
        )
    if (wanted or elastic.on_mapping_conflict == "reindex") and settings.source is None:
        found.append(f"{path}: {what} fills indexes from the tables: the section [source] is missing")
    if wanted and not elastic.create_index:
        found.append(f"{path}: {what} makes indexes: it needs create_index = true in [elasticsearch]")
    for file, one in wanted:
        if PLACEHOLDER.search(one.name):
            found.append(f"{file}: index {one.name}: {what} needs an index with one name, without placeholders")
        if one.template:
            found.append(
                f"{file}: index {one.name}: {what} has no meaning with template = true: the cluster's template says "
                "the types, not the columns"
            )
    return found


def _conflict(settings: Settings, index: IndexSettings) -> OnMappingConflict:
    return index.on_mapping_conflict or settings.elasticsearch.on_mapping_conflict
