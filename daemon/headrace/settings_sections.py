"""The sections of the configuration files as models: every key with its type, its default and what it means."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    field_validator,
)

from headrace.settings_values import (
    Start,
    StartLatest,
    compile_filter,
    parse_duration,
    parse_host_port,
    parse_int,
    parse_size,
    parse_start,
)

KIB = 1 << 10
MIB = 1 << 20

Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=86400 * 7, allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1 * KIB, le=1 << 40)]
Int = Annotated[int, BeforeValidator(parse_int)]


class Section(BaseModel):
    """The base of all sections: an unknown key is an error, a value can't change, an error never shows a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class DaemonSettings(Section):
    """[daemon]: the process."""

    node: str = Field(
        default_factory=socket.gethostname, min_length=1, description="Name of this daemon. Default: the host name."
    )
    destinations: Path = Field(
        default=Path("destinations"),
        description="Folder with one file a destination; relative to the folder of headrace.toml.",
    )
    event_loop: Literal["auto", "asyncio", "uvloop"] = Field(
        default="auto", description="auto: uvloop when it is installed, which is faster; asyncio: Python's own."
    )
    drain_timeout: Seconds = Field(
        default=10.0, description="How long a stop waits for confirmation of what is in flight, in seconds."
    )
    checkpoint_interval: Seconds = Field(
        default=1.0, description="Time between two writes of the confirmed position, in seconds."
    )


class StateSettings(Section):
    """[state]: where positions and schema history are kept."""

    store: Literal["sqlite"] = Field(default="sqlite", description="Kind of store; sqlite is the embedded one.")
    path: Path = Field(
        default=Path("var/headrace.db"),
        description="The store's file; relative to the working directory. Lock files lie beside it.",
    )


class HttpSettings(Section):
    """[http]: health and metrics."""

    listen: str = Field(
        default="127.0.0.1:9180", description='Address and port of /health and /metrics; "" turns them off.'
    )

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, value: str) -> str:
        if value:
            parse_host_port(value)
        return value

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port, or None when HTTP is off."""
        return parse_host_port(self.listen) if self.listen else None


class LogSettings(Section):
    """[log]: what goes to standard error."""

    format: Literal["console", "json"] = Field(default="console", description="Lines for people, or JSON objects.")
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severe lines that are written."
    )


class SourceSettings(Section):
    """[source]: the MySQL server whose binlog is read."""

    host: str = Field(min_length=1, description="Host name or address of the MySQL server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="Its port.")
    user: str = Field(min_length=1, description="The account; needs REPLICATION SLAVE, REPLICATION CLIENT and SELECT.")
    password: SecretStr = Field(description='The account\'s password; best as "${NAME}" or "${file:/path}".')
    start: Annotated[Start, PlainValidator(parse_start), PlainSerializer(repr)] = Field(
        default=StartLatest(),
        description='Where to begin when no position is stored: "earliest", "latest", "file:offset", a GTID set, '
        "or an RFC 3339 time.",
    )
    server_id: Int = Field(
        default=0,
        ge=0,
        le=(1 << 32) - 1,
        description="Our id as a replica, unique among all replicas of the source; 0 derives one from node and "
        "destination.",
    )
    tls: Literal["preferred", "required", "disabled"] = Field(
        default="preferred", description="preferred: encrypted when the server can; required: or not at all."
    )
    tls_ca: Path | None = Field(
        default=None, description="File of CA certificates; when given, the server's certificate and name are checked."
    )
    connect_timeout: Seconds = Field(
        default=10.0, description="Limit for connecting and for each answer before the stream, in seconds."
    )
    heartbeat: Seconds = Field(
        default=5.0, description="After this long without events the source sends a heartbeat, in seconds."
    )
    stall_after: Seconds = Field(
        default=10.0,
        description="STALLED once the oldest unconfirmed message is older than this, in seconds. (A source that sends "
        "nothing is noticed after two heartbeats and a second.)",
    )


class FilterSettings(Section):
    """[filter]: which tables are published. Comma-separated regexes that match the whole of schema.table."""

    include: str = Field(default=r".*\..*", description="Tables that are published.")
    exclude: str = Field(default="", description="Tables that are not, even when include matches.")

    @field_validator("include", "exclude")
    @classmethod
    def _check_patterns(cls, value: str) -> str:
        compile_filter(value)
        return value

    @property
    def include_patterns(self) -> tuple[re.Pattern[str], ...]:
        """Compiled anew at each call; for fullmatch on schema.table. Empty means every table, as in Canal."""
        return compile_filter(self.include)

    @property
    def exclude_patterns(self) -> tuple[re.Pattern[str], ...]:
        """Compiled anew at each call; for fullmatch on schema.table. Empty means none."""
        return compile_filter(self.exclude)


class MessageSettings(Section):
    """[message]: what a message looks like."""

    format: Literal["canal"] = Field(default="canal", description="canal: Canal's flat JSON.")
    rows_per_message: Int = Field(
        default=0, ge=0, le=1_000_000, description="At most this many rows a message; 0: a message a rows event."
    )


class RouteSettings(Section):
    """[route]: where messages go within the sink."""

    topic: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,249}$",
        description="The topic; required for Kafka, else by default the destination's name.",
    )
    partition: Int = Field(default=0, ge=0, le=1_000_000, description="The partition that takes all messages.")

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        if value in (".", ".."):
            raise ValueError('should not be "." or "..": Kafka has no such topics')
        return value


class QueueSettings(Section):
    """[queue]: what lies between reader and sink."""

    bytes: Size = Field(
        default=32 * MIB,
        description="Budget for raw and formatted bytes that are not confirmed; when it is used up, reading waits.",
    )


def _split_servers(value: Any) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError('should be "host:port", several of them with commas between, or a list of them')
    servers = tuple(part.strip() for part in parts if part.strip())
    if not servers:
        raise ValueError("should name at least one broker")
    for server in servers:
        parse_host_port(server)
    return servers


class KafkaSinkSettings(Section):
    """[sink] type = "kafka"."""

    type: Literal["kafka"] = Field(description="The kind of sink.")
    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(_split_servers)] = Field(
        description='Brokers to begin with: "host:port", comma-separated, or a list.'
    )
    client_id: str = Field(default="headrace", min_length=1, description="Our name in the brokers' logs and quotas.")
    compression: Literal["none", "gzip", "lz4", "zstd", "snappy"] = Field(
        default="none", description="Compression of record batches."
    )
    batch_bytes: Size = Field(
        default=900 * KIB, description="Largest record batch; stays below the brokers' message.max.bytes."
    )
    max_in_flight_bytes: Size = Field(default=16 * MIB, description="Bytes handed over and not yet confirmed.")
    request_timeout: Seconds = Field(default=30.0, description="Limit for a broker's answer, in seconds.")


class JsonlSinkSettings(Section):
    """[sink] type = "jsonl": a line a message."""

    type: Literal["jsonl"] = Field(description="The kind of sink.")
    path: str = Field(
        min_length=1,
        description='The file that lines are appended to, relative to the working directory; "-" is standard output.',
    )


class NullSinkSettings(Section):
    """[sink] type = "null": publishes nowhere and confirms at once; for measuring."""

    type: Literal["null"] = Field(description="The kind of sink.")


SinkSettings = KafkaSinkSettings | JsonlSinkSettings | NullSinkSettings
SINKS: dict[str, type[Section]] = {"kafka": KafkaSinkSettings, "jsonl": JsonlSinkSettings, "null": NullSinkSettings}
"""The sections that `[sink] type` chooses from, by that type."""


class DestinationSettings(Section):
    """A file of the destinations folder: one MySQL source and where its changes go."""

    name: str = Field(description="Not a key: the file's name without .toml.")
    source: SourceSettings
    filter: FilterSettings = FilterSettings()
    message: MessageSettings = MessageSettings()
    route: RouteSettings = RouteSettings()
    queue: QueueSettings = QueueSettings()
    sink: SinkSettings = Field(discriminator="type")


class MainSettings(Section):
    """headrace.toml."""

    daemon: DaemonSettings = Field(default_factory=DaemonSettings)
    state: StateSettings = StateSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()


class Settings(MainSettings):
    """The whole configuration: headrace.toml and all destinations, complete and checked."""

    destinations: dict[str, DestinationSettings]
