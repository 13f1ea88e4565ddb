"""The configuration of the RabbitMQ consumer: a TOML file into models. Unknown keys are errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from headrace_documents.config import Model, load_file
from headrace_documents.settings import ElasticsearchSettings

MAX_RETRY_SECONDS = 1500.0
"""RabbitMQ closes the channel of a consumer that leaves a message unacknowledged for 30 minutes (consumer_timeout)."""
QueueType = Literal["quorum", "classic"]
Name = Annotated[str, Field(min_length=1, max_length=255)]


def _servers(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


class RabbitMqSettings(Model):
    """[rabbitmq]: where the messages come from."""

    servers: Annotated[list[str], BeforeValidator(_servers)] = Field(
        min_length=1, description="nodes of the cluster, tried in turn: host:port, comma-separated, or a list"
    )
    virtual_host: str = Field(default="/", min_length=1, description="the virtual host")
    user: str = Field(min_length=1, description="the account")
    password: SecretStr = Field(description="best given as ${VAR} or ${file:/path}")
    tls: bool = Field(default=False, description="whether the connection is encrypted (amqps)")
    tls_ca: str = Field(default="", description="file of CA certificates of the brokers; the system's when empty")
    tls_certificate: str = Field(default="", description="our certificate, where the broker asks for one")
    tls_key: str = Field(default="", description="its key; in the file of the certificate when empty")
    heartbeat: int = Field(default=15, ge=1, le=3600, description="AMQP heartbeat in seconds")
    timeout: float = Field(default=10.0, gt=0, description="seconds for connecting, and for each answer of the broker")
    queue: Name = Field(description="the queue that is read")
    prefetch: int = Field(
        default=200,
        ge=1,
        le=65_535,
        description="most messages that are taken and not yet acknowledged; the bound of memory",
    )
    linger: float = Field(
        default=0.01,
        ge=0,
        le=10,
        description="seconds that a batch waits for more messages while the prefetch is not used up",
    )
    format: Literal["canal"] = Field(default="canal", description="the format of the messages")
    declare: bool = Field(default=False, description="make the queue, durable, when it is missing")
    queue_type: QueueType = Field(default="quorum", description="the type of a queue that is made")
    exchange: str = Field(default="", max_length=255, description="with declare: exchange that the queue is bound to")
    exchange_type: Literal["topic", "direct", "fanout", "headers"] = Field(
        default="topic", description="its type, where it has to be made"
    )
    binding: str = Field(default="#", max_length=255, description="the routing key that it is bound by")

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, value: list[str]) -> list[str]:
        for server in value:
            host, colon, port = server.rpartition(":")
            if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"{server!r} is not host:port")
        return value

    @field_validator("tls_ca", "tls_certificate", "tls_key")
    @classmethod
    def _check_file(cls, value: str) -> str:
        if value and not Path(value).is_file():
            raise ValueError(f"there is no file {value}")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = self.model_fields_set
        if not self.tls and (strange := sorted(given & {"tls_ca", "tls_certificate", "tls_key"})):
            raise ValueError(f"{', '.join(strange)} has no meaning without tls = true")
        wanted = {"queue_type", "exchange", "exchange_type", "binding"}
        if not self.declare and (strange := sorted(given & wanted)):
            raise ValueError(f"{', '.join(strange)} has no meaning without declare = true")
        if self.tls_key and not self.tls_certificate:
            raise ValueError("tls_key needs tls_certificate")
        return self

    def addresses(self) -> Iterator[tuple[str, int]]:
        """The nodes as (host, port)."""
        for server in self.servers:
            host, _, port = server.rpartition(":")
            yield host.strip("[]"), int(port)


class RetrySettings(Model):
    """[retry]: a message that can't be applied is tried again while others go on."""

    attempts: int = Field(default=3, ge=0, le=1000, description="how often, before it goes to the dead letters")
    delay: float = Field(default=1.0, gt=0, description="seconds before the first time")
    factor: float = Field(default=10.0, ge=1, le=100, description="each further wait is longer by this factor")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(self.delays()) > MAX_RETRY_SECONDS:
            raise ValueError(
                f"the waits should come to no more than {MAX_RETRY_SECONDS:.0f} s: RabbitMQ takes back a message that "
                "is unacknowledged for 30 minutes"
            )
        return self

    def delays(self) -> list[float]:
        """The waits before the retries, in seconds."""
        return [self.delay * self.factor**number for number in range(self.attempts)]


class DeadLetterSettings(Model):
    """[dead_letters]: messages that could not be applied, and the scan that sends them again."""

    queue: str = Field(
        default="", max_length=255, description='where they go; empty: the name of the queue and ".dead"'
    )
    manual_queue: str = Field(
        default="",
        max_length=255,
        description='where they stay for people after `attempts`; empty: the name of `queue` and ".manual"',
    )
    exchange: str = Field(
        default="",
        max_length=255,
        description="they are published to it, by the names of the queues; empty: the default one",
    )
    declare: bool = Field(default=True, description="make the queues and the exchange, durable, when they are missing")
    queue_type: QueueType = Field(default="quorum", description="the type of queues that are made")
    scan_every: float = Field(default=60.0, gt=0, description="seconds between two scans")
    attempts: int = Field(default=3, ge=0, le=1000, description="how often a scan sends a message again; 0: never")


class DuplicatesSettings(Model):
    """[duplicates]: messages that come again are dropped by their ids before Elasticsearch is asked."""

    store: Literal["none", "sqlite", "redis"] = Field(default="none", description="where the ids are kept")
    path: str = Field(default="", description="sqlite: the file")
    url: SecretStr = Field(
        default=SecretStr(""), description="redis: redis://[user:password@]host:port/database, or rediss://"
    )
    ttl: float = Field(default=86_400.0, ge=1, description="seconds that an id is remembered")
    timeout: float = Field(default=2.0, gt=0, description="seconds for an answer; without one the messages are applied")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.store == "sqlite" and not self.path:
            raise ValueError("path is required with store = 'sqlite'")
        if self.store == "redis" and not self.url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("url should begin with redis:// or rediss:// with store = 'redis'")
        return self


class RunSettings(Model):
    """[run]: the process."""

    drain_timeout: float = Field(default=10.0, ge=0, description="seconds that messages in hand get at SIGTERM")
    reconnect_max: float = Field(
        default=30.0, gt=0, description="longest wait, in seconds, before RabbitMQ or Elasticsearch is tried again"
    )
    status_file: str = Field(default="", description="JSON file with state and counts; none when empty")
    status_every: float = Field(
        default=5.0, gt=0, description="seconds between two writings of it, besides changes of state"
    )


class LogSettings(Model):
    """[log]: lines on standard error."""

    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto: console at a terminal, else json"
    )


class Settings(Model):
    """The whole file."""

    rabbitmq: RabbitMqSettings
    elasticsearch: ElasticsearchSettings
    retry: RetrySettings = RetrySettings()
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    duplicates: DuplicatesSettings = DuplicatesSettings()
    run: RunSettings = RunSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len({self.rabbitmq.queue, self.dead_queue, self.manual_queue}) < 3:
            raise ValueError("queue, dead_letters.queue and dead_letters.manual_queue should be three different ones")
        if max(len(name.encode()) for name in (self.dead_queue, self.manual_queue)) > 255:
            raise ValueError("the name of a queue of dead letters is longer than 255 bytes: set dead_letters.queue")
        return self

    @property
    def dead_queue(self) -> str:
        """The queue of dead letters that wait for the scan."""
        return self.dead_letters.queue or f"{self.rabbitmq.queue}.dead"

    @property
    def manual_queue(self) -> str:
        """The queue of dead letters that wait for people."""
        return self.dead_letters.manual_queue or f"{self.dead_queue}.manual"


def load_settings(path: Path) -> Settings:
    """Reads a config file. Raises SettingsError with everything that is wrong."""
    return load_file(path, Settings)
