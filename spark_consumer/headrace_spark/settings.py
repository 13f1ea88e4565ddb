"""The configuration of the Spark consumer: a TOML file into models. Unknown keys are errors; all are told at once."""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from headrace_spark.documents import Rules
from headrace_spark.errors import Problem, SettingsError

_REFERENCE = re.compile(r"\$(\$)?\{([^}]*)\}")
_INTERVAL = re.compile(r"^\d+ +(milliseconds?|seconds?|minutes?|hours?)$")  # what Spark understands


def _absolute(path: str) -> str:
    # Spark's workers run in another directory.
    return str(Path(path).absolute()) if path else path


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class KafkaSettings(_Model):
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


class ElasticsearchSettings(_Model):
    """Where the documents go."""

    hosts: list[Annotated[str, Field(pattern=r"^https?://[^/]+:\d+(/.*)?$")]] = Field(
        min_length=1, description="URLs with scheme and port"
    )
    user: str = Field("", description="user name, with `password`")
    password: SecretStr = Field(SecretStr(""), description="best given as ${VAR} or ${file:/path}")
    api_key: SecretStr = Field(SecretStr(""), description="instead of user and password")
    ca_certs: str = Field("", description="file with the certificates to trust; the system's when empty")
    index: str = Field("{database}.{table}", min_length=1, description="name or template of the index; lower-cased")
    id_prefix: str = Field("", description="put before each document id, e.g. '{table}:' when tables share an index")
    types: Literal["mysql", "strings"] = Field("mysql", description="numbers as JSON numbers, or all as strings")
    decimals: Literal["string", "number"] = Field("string", description="'number' may lose digits of a DECIMAL")
    create_index: bool = Field(True, description="create a missing index with `gc_deletes`, `settings` and mappings")
    gc_deletes: str = Field(
        "1h",
        pattern=r"^\d+(ms|s|m|h|d)$",
        description="how long Elasticsearch remembers a delete; an older change that comes later would bring it back",
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="further settings of a created index")
    mappings_file: str = Field("", description="JSON file with the mappings of a created index")
    bulk_actions: int = Field(2000, ge=1, le=100_000, description="most actions of one bulk request")
    bulk_bytes: int = Field(5_000_000, ge=1000, le=100_000_000, description="most bytes of one bulk request")
    request_timeout: float = Field(30.0, gt=0, description="seconds")
    retries: int = Field(
        6, ge=0, description="how often a refused or failed request is tried again before the batch fails"
    )
    retry_wait: float = Field(0.5, gt=0, description="seconds before the first retry; doubles each time, at most 10")

    @model_validator(mode="after")
    def _credentials(self) -> ElasticsearchSettings:
        if self.api_key.get_secret_value() and self.user:
            raise ValueError("give either api_key or user and password, not both")
        if bool(self.user) != bool(self.password.get_secret_value()):
            raise ValueError("user and password belong together: one of them is empty")
        return self

    @field_validator("mappings_file")
    @classmethod
    def _mappings(cls, value: str) -> str:
        if value:
            try:
                good = isinstance(json.loads(Path(value).read_bytes()), dict)
            except (OSError, ValueError) as error:
                raise ValueError(f"can't read {value}: {error}") from None
            if not good:
                raise ValueError(f"{value} does not hold a JSON object")
        return _absolute(value)

    @field_validator("ca_certs")
    @classmethod
    def _certificates(cls, value: str) -> str:
        if value and not Path(value).is_file():
            raise ValueError(f"there is no file {value}")
        return _absolute(value)

    def rules(self) -> Rules:
        """How rows become documents."""
        return Rules(self.index, self.id_prefix, self.types, self.decimals)

    def index_body(self) -> dict[str, Any]:
        """Settings and mappings of an index that we create.

        Without a mappings file dates are not guessed: a VARCHAR whose first value looks like a date would refuse
        every other text from then on.
        """
        mappings: dict[str, Any] = {"date_detection": False}
        if self.mappings_file:
            mappings = json.loads(Path(self.mappings_file).read_bytes())
            mappings = mappings.get("mappings", mappings)
        return {"settings": {"index.gc_deletes": self.gc_deletes, **self.settings}, "mappings": mappings}


class SparkSettings(_Model):
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


class Settings(_Model):
    """The whole file."""

    kafka: KafkaSettings
    elasticsearch: ElasticsearchSettings
    spark: SparkSettings


def load_settings(path: Path) -> Settings:
    """Reads a config file, with `${VAR}` and `${file:/path}` filled in (`$${` stands for a plain `${`).

    Raises SettingsError with everything that is wrong.
    """
    file = str(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError([Problem(file, "", f"can't be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([Problem(file, "", f"is not TOML: {error}")]) from None
    problems: list[Problem] = []
    expanded = _expand(raw, "", file, problems)
    failed = {problem.key for problem in problems}
    try:
        settings = Settings.model_validate(expanded)
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            key = ".".join(str(part) for part in item["loc"])
            if key not in failed:
                problems.append(Problem(file, key, _sentence(item["type"], item["msg"])))
        raise SettingsError(problems) from None
    if problems:
        raise SettingsError(problems)
    return settings


def _sentence(kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return "there is no such key"
    if kind == "missing":
        return "is required and is not there"
    return text.removeprefix("Value error, ")


def _expand(value: Any, key: str, file: str, problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return {name: _expand(item, f"{key}.{name}" if key else name, file, problems) for name, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, f"{key}.{i}", file, problems) for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return match[0][1:]
        name = match[2]
        if name.startswith("file:"):
            try:
                return Path(name.removeprefix("file:")).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                problems.append(Problem(file, key, f"the file of {match[0]} can't be read: {error}"))
                return match[0]
        if name not in os.environ:
            problems.append(Problem(file, key, f"the environment has no variable {name!r}"))
            return match[0]
        return os.environ[name]

    return _REFERENCE.sub(replace, value)
