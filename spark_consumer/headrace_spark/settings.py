"""The configuration of the Spark consumer: a TOML file into models. Unknown keys are errors; all are told at once."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from headrace_documents.config import Model, load_file
from headrace_documents.settings import ElasticsearchSettings

_INTERVAL = re.compile(r"^\d+ +(milliseconds?|seconds?|minutes?|hours?)$")  # what Spark understands


class KafkaSettings(Model):
    """Where the messages come from, and where those go that can't be applied."""

    bootstrap_servers: str = Field(min_length=1, description="host:port, several separated by commas")
    topics: list[str] = Field(min_length=1, description="the topics to subscribe to")
    starting_offsets: Literal["earliest", "latest"] = Field(
        "earliest", description="where the very first start begins; later ones go on from the checkpoint"
    )
    dead_letter_topic: str = Field(min_length=1, description="created when it is missing")
    format: Literal["canal"] = Field("canal", description="the format of the messages")
    fail_on_data_loss: bool = Field(
        True, description="stop when Kafka deleted messages that were never read, instead of going on without them"
    )
    topic_timeout: float = Field(60.0, ge=0, description="seconds to wait at the start for topics that are not there")
    connect_timeout: float = Field(
        10.0, gt=0, description="seconds until an unreachable broker is an error at the start"
    )
    options: dict[str, str] = Field(
        default_factory=dict, description="further options of the Kafka clients, e.g. security.protocol"
    )

    @field_validator("bootstrap_servers")
    @classmethod
    def _servers(cls, value: str) -> str:
        for server in value.split(","):
            host, colon, port = server.strip().rpartition(":")
            if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{server.strip()!r} is not host:port")
        return value

    @model_validator(mode="after")
    def _no_circle(self) -> KafkaSettings:
        if self.dead_letter_topic in self.topics:
            raise ValueError("dead_letter_topic is also one of topics: its messages would go round for ever")
        return self

    def servers(self) -> list[tuple[str, int]]:
        """The bootstrap servers as (host, port)."""
        pairs = (server.strip().rpartition(":") for server in self.bootstrap_servers.split(","))
        return [(host.strip("[]"), int(port)) for host, _, port in pairs]


class SparkSettings(Model):
    """How Spark runs the query."""

    master: str = Field("local[2,4]", min_length=1, description="local[CORES,ATTEMPTS] or a cluster's URL")
    app_name: str = Field("headrace-spark", min_length=1)
    checkpoint: str = Field(min_length=1, description="directory that remembers what has been done")
    trigger: str = Field("2 seconds", description="time between the starts of two batches")
    max_offsets_per_trigger: int = Field(50_000, ge=1, description="most messages of one batch")
    min_partitions: int = Field(
        0, ge=0, description="cut a batch into at least so many tasks; 0: one a Kafka partition"
    )
    driver_memory: str = Field("1g", pattern=r"^\d+[kmgt]$", description="heap of the driver")
    ivy: str = Field("", description="directory for downloaded jars; empty: Spark's own, in the home directory")
    scratch: str = Field("", description="directory for Spark's temporary files; empty: the system's")
    jars: list[str] = Field(
        default_factory=list, description="local jars of Spark's Kafka source; nothing is downloaded"
    )
    stop_timeout: float = Field(60.0, gt=0, description="seconds a running batch gets to finish at SIGTERM")
    restarts: int = Field(10, ge=0, description="how often a failing query is started again before the process ends")
    conf: dict[str, str] = Field(default_factory=dict, description="further Spark properties")

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


class Settings(Model):
    """The whole file."""

    kafka: KafkaSettings
    elasticsearch: ElasticsearchSettings
    spark: SparkSettings


def load_settings(path: Path) -> Settings:
    """Reads a config file. Raises SettingsError with everything that is wrong."""
    return load_file(path, Settings)
