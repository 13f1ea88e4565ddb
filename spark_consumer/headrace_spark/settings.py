"""The configuration of the Spark consumer: a TOML file into models. Unknown keys are errors; all are told at once."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from headrace_common.section import Hosts, Int, Seconds, SecondsOrOff, Section, Topic
from headrace_common.values import parse_host_port
from headrace_documents.config import load_file
from headrace_documents.index_settings import IndexSettings
from headrace_documents.settings import ElasticsearchSettings

_INTERVAL = re.compile(r"^\d+ +(milliseconds?|seconds?|minutes?|hours?)$")  # what Spark understands

TopicName = Annotated[Topic, Field(min_length=1)]


class KafkaSettings(Section):
    """Where the messages come from, and where those go that can't be applied."""

    bootstrap_servers: Hosts = Field(description='Brokers to begin with: "host:port", comma-separated, or a list.')
    topics: list[TopicName] = Field(min_length=1, description="The topics to subscribe to")
    starting_offsets: Literal["earliest", "latest"] = Field(
        "earliest", description="Where the very first start begins; later ones go on from the checkpoint"
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

    @model_validator(mode="after")
    def _no_circle(self) -> KafkaSettings:
        if self.dead_letter_topic in self.topics:
            raise ValueError("dead_letter_topic is also one of topics: its messages would go round for ever")
        return self

    def servers(self) -> list[tuple[str, int]]:
        """The bootstrap servers as (host, port)."""
        return [parse_host_port(server) for server in self.bootstrap_servers]


class SparkSettings(Section):
    """How Spark runs the query."""

    master: str = Field("local[2,4]", min_length=1, description="local[CORES,ATTEMPTS] or a cluster's URL")
    app_name: str = Field("headrace-spark", min_length=1)
    checkpoint: str = Field(min_length=1, description="Directory that remembers what has been done")
    trigger: str = Field("2 seconds", description="Time between the starts of two batches")
    max_offsets_per_trigger: Int = Field(50_000, ge=1, description="Most messages of one batch")
    min_partitions: Int = Field(
        0, ge=0, description="Cut a batch into at least so many tasks; 0: one a Kafka partition"
    )
    driver_memory: str = Field("1g", pattern=r"^\d+[kmgt]$", description="Heap of the driver")
    ivy: str = Field("", description="Directory for downloaded jars; empty: Spark's own, in the home directory")
    scratch: str = Field("", description="Directory for Spark's temporary files; empty: the system's")
    jars: list[str] = Field(
        default_factory=list, description="Local jars of Spark's Kafka source; nothing is downloaded"
    )
    drain_timeout: Seconds = Field(60.0, description="What a running batch gets to finish at SIGTERM.")
    restarts: Int = Field(10, ge=0, description="How often a failing query is started again before the process ends")
    conf: dict[str, str] = Field(default_factory=dict, description="Further Spark properties")

    @field_validator("trigger")
    @classmethod
    def _trigger(cls, value: str) -> str:
        if not _INTERVAL.match(value.strip()):
            raise ValueError(f"{value!r} is not a time like '2 seconds'")
        return value.strip()

    def checkpoint_location(self) -> str:
        """The checkpoint as a URL or an absolute path: Spark's JVM runs in another directory than we do."""
        return self.checkpoint if "://" in self.checkpoint else str(Path(self.checkpoint).absolute())

    def scratch_directory(self) -> Path:
        """Where temporary files go; nothing in it is needed after the process has ended."""
        return Path(self.scratch or Path(tempfile.gettempdir(), f"headrace-spark-{os.getuid()}")).absolute()


class Settings(Section):
    """The whole file."""

    kafka: KafkaSettings
    elasticsearch: ElasticsearchSettings
    spark: SparkSettings
    index: list[IndexSettings] = Field(
        default_factory=list,
        description="Declared indexes, [[index]] each. With any of them, other tables are passed over unless "
        "[elasticsearch] index is given",
    )

    @property
    def takes_others(self) -> bool:
        """Whether tables that no [[index]] names have an index as [elasticsearch] says."""
        return not self.index or "index" in self.elasticsearch.model_fields_set


def load_settings(path: Path) -> Settings:
    """Reads a config file. Raises SettingsError with everything that is wrong."""
    return load_file(path, Settings)
