"""The configuration of the RabbitMQ consumer: a TOML file into models. Unknown keys are errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from headrace_common.rabbitmq_section import QueueType, RabbitMqSection
from headrace_common.section import Int, Number, Seconds, SecondsOrOff, Section
from headrace_documents.settings import LISTEN, ElasticsearchSettings, HttpSettings, Listen, LogSettings, load_file

MAX_RETRY_SECONDS = 1500.0
"""RabbitMQ closes the channel of a consumer that leaves a message unacknowledged for 30 minutes (consumer_timeout)."""
Name = Annotated[str, Field(min_length=1, max_length=255)]


class RabbitMqSettings(RabbitMqSection):
    """[rabbitmq]: where the messages come from."""

    timeout: Seconds = Field(default=10.0, description="Limit for connecting, and for each answer of the broker.")
    queue: Name = Field(description="The queue that is read")
    prefetch: Int = Field(
        default=200,
        ge=1,
        le=65_535,
        description="Most messages that are taken and not yet acknowledged; the bound of memory",
    )
    linger: Annotated[SecondsOrOff, Field(le=10)] = Field(
        default=0.01,
        description="How long a batch waits for more messages while the prefetch is not used up",
    )
    declare: bool = Field(default=False, description="Make the queue, durable, when it is missing")
    queue_type: QueueType = Field(default="quorum", description="The type of a queue that is made")
    exchange: str = Field(default="", max_length=255, description="With declare: exchange that the queue is bound to")
    exchange_type: Literal["topic", "direct", "fanout", "headers"] = Field(
        default="topic", description="Its type, where it has to be made"
    )
    binding: str = Field(default="#", max_length=255, description="The routing key that it is bound by")

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = self.model_fields_set
        wanted = {"queue_type", "exchange", "exchange_type", "binding"}
        if not self.declare and (strange := sorted(given & wanted)):
            raise ValueError(f"{', '.join(strange)} has no meaning without declare = true")
        return self


class RetrySettings(Section):
    """[retry]: a message that can't be applied is tried again while others go on."""

    attempts: Int = Field(default=3, ge=0, le=1000, description="How often, before it goes to the dead letters")
    delay: Seconds = Field(default=1.0, description="Before the first time.")
    factor: Number = Field(default=10.0, ge=1, le=100, description="Each further wait is longer by this factor")

    @model_validator(mode="after")
    def _check(self) -> Self:
        # The last wait is the longest: a power that is too large for a float is not calculated.
        if self.attempts * math.log(self.factor) > 100 or sum(self.delays()) > MAX_RETRY_SECONDS:
            raise ValueError(
                f"the waits should come to no more than {MAX_RETRY_SECONDS:.0f} s: RabbitMQ takes back a message that "
                "is unacknowledged for 30 minutes"
            )
        return self

    def delays(self) -> list[float]:
        """Returns the waits before the retries, in seconds."""
        return [self.delay * self.factor**number for number in range(self.attempts)]


class DeadLetterSettings(Section):
    """[dead_letters]: messages that could not be applied, and the scan that sends them again."""

    queue: str = Field(
        default="", max_length=255, description='Where they go; empty: the name of the queue and ".dead"'
    )
    operator_queue: str = Field(
        default="",
        max_length=255,
        description='Where they wait for an operator after `attempts`; empty: the name of `queue` and ".operator"',
    )
    exchange: str = Field(
        default="",
        max_length=255,
        description="They are published to it, by the names of the queues; empty: the default one",
    )
    declare: bool = Field(default=True, description="Make the queues and the exchange, durable, when they are missing")
    queue_type: QueueType = Field(default="quorum", description="The type of queues that are made")
    scan_interval: Seconds = Field(default=60.0, description="Time between two scans.")
    attempts: Int = Field(default=3, ge=0, le=1000, description="How often a scan sends a message again; 0: never")


class DuplicatesSettings(Section):
    """[duplicates]: messages that come again are dropped by their ids before Elasticsearch is asked."""

    store: Literal["none", "sqlite", "redis"] = Field(default="none", description="Where the ids are kept")
    path: str = Field(default="", description="sqlite: the file")
    url: SecretStr = Field(
        default=SecretStr(""), description="redis: redis://[user:password@]host:port/database, or rediss://"
    )
    ttl: Annotated[Seconds, Field(ge=1)] = Field(default=86_400.0, description="How long an id is remembered.")
    timeout: Seconds = Field(default=2.0, description="Limit for an answer; without one the messages are applied.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.store == "sqlite" and not self.path:
            raise ValueError("path is required with store = 'sqlite'")
        if self.store == "redis" and not self.url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("url should begin with redis:// or rediss:// with store = 'redis'")
        return self


class RunSettings(Section):
    """[run]: the process."""

    drain_timeout: SecondsOrOff = Field(default=10.0, description="What messages in hand get at SIGTERM.")
    reconnect_max: Seconds = Field(
        default=30.0, description="The longest wait before RabbitMQ or Elasticsearch is tried again."
    )


class ConsumeHttpSettings(HttpSettings):
    """[http]: health and metrics."""

    listen: Listen = Field(default="127.0.0.1:9714", description=LISTEN)


class Settings(Section):
    """The whole file."""

    rabbitmq: RabbitMqSettings
    elasticsearch: ElasticsearchSettings
    retry: RetrySettings = RetrySettings()
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    duplicates: DuplicatesSettings = DuplicatesSettings()
    run: RunSettings = RunSettings()
    http: ConsumeHttpSettings = ConsumeHttpSettings()
    log: LogSettings = LogSettings()

    @field_validator("elasticsearch")
    @classmethod
    def _no_reindex(cls, value: ElasticsearchSettings) -> ElasticsearchSettings:
        if value.on_mapping_conflict == "reindex":
            raise ValueError(
                'on_mapping_conflict = "reindex" is for headrace-spark: headrace-consume reads no tables, so leave it '
                'at "dead_letter"'
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({self.rabbitmq.queue, self.dead_queue, self.operator_queue}) < 3:
            raise ValueError("queue, dead_letters.queue and dead_letters.operator_queue should be three different ones")
        if max(len(name.encode()) for name in (self.dead_queue, self.operator_queue)) > 255:
            raise ValueError("the name of a queue of dead letters is longer than 255 bytes: set dead_letters.queue")
        return self

    @property
    def dead_queue(self) -> str:
        """Returns the queue of dead letters that wait for the scan."""
        return self.dead_letters.queue or f"{self.rabbitmq.queue}.dead"

    @property
    def operator_queue(self) -> str:
        """Returns the queue of dead letters that need an operator."""
        return self.dead_letters.operator_queue or f"{self.dead_queue}.operator"


def load_settings(path: Path) -> Settings:
    """Reads a configuration file. Raises SettingsError with all errors."""
    return load_file(path, Settings)
