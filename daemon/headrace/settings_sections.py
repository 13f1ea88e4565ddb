"""The sections of the configuration files as models: every key with its type, its default and what it means."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, SecretStr, field_validator

from headrace.settings_message import KIB, MIB, Int, MessageSettings, Seconds, Section, Size, Topic
from headrace.settings_values import (
    Start,
    StartLatest,
    compile_filter,
    parse_duration,
    parse_host_port,
    parse_place,
    parse_start,
)

SecondsOrOff = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, le=86400 * 7, allow_inf_nan=False)]
"""0 means off."""


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
    checkpoint_transactions: Int = Field(
        default=10_000,
        ge=1,
        le=1_000_000_000,
        description="After so many confirmed transactions the position is written before that time.",
    )
    spool: Path = Field(
        default=Path("var/spool"),
        description="Folder where rows of prepared XA transactions wait on disk for their XA COMMIT; relative to the "
        "working directory.",
    )
    watch: SecondsOrOff = Field(
        default=2.0,
        description="Time between two looks at the destinations folder, whose files are taken over while running, in "
        "seconds; 0: only on SIGHUP.",
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


def _split_places(value: Any) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ValueError('should be a list of places such as ["mysql-bin.000003:1234"]')
    return tuple(parse_place(part) for part in parts if not isinstance(part, str) or part.strip())


class StandbySettings(Section):
    """[[source.standby]]: another address of the same data."""

    host: str = Field(min_length=1, description="Host name or address of the MySQL server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="Its port.")


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
        description="STALLED (sink) once messages wait and none was confirmed for so long, in seconds; STALLED "
        "(source) once the source is ahead of what came and no byte came for so long.",
    )
    row_image: Literal["full", "any"] = Field(
        default="full",
        description="full: a source whose binlog_row_image is not FULL is refused; any: it is read, and messages lack "
        "the columns that its rows lack.",
    )
    skip_event: Annotated[tuple[str, ...], BeforeValidator(_split_places)] = Field(
        default=(),
        description='Events to pass over, each by where it begins: "mysql-bin.000003:1234". What they changed is not '
        "published; it is meant for one event that stops the destination for good.",
    )
    max_spool: Size = Field(
        default=1024 * MIB,
        description="Bytes that rows of prepared XA transactions may take on disk; beyond it the destination stops.",
    )

    on_position_lost: Literal["fail", "next_file", "earliest", "latest"] = Field(
        default="fail",
        description="When the source can't serve the stored position any more. fail: wait for an operator; next_file: "
        "go on with the next binlog when a scan proves that the present one is cut off (else as fail); earliest: with "
        "the oldest binlog; latest: with what is written from now on. What is given up is logged, counted and kept.",
    )
    on_diverged: Literal["fail", "continue"] = Field(
        default="fail",
        description="When the server lacks transactions that were published already (after a failover, a restore or a "
        "reset). fail: wait for an operator; continue: go on, and report which.",
    )
    headroom_warning: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.25,
        description="Warn when less than this share of the time that the source keeps binlogs is left before ours is "
        "purged; 0: never.",
    )
    read_only: Literal["accept", "refuse"] = Field(
        default="accept", description="Whether a server with read_only, such as a replica, is taken as source."
    )
    max_replica_lag: SecondsOrOff = Field(
        default=0.0,
        description="A replica that is further behind its own source than this, or does not replicate, is refused at "
        "the start; 0: any is accepted.",
    )
    standby: tuple[StandbySettings, ...] = Field(
        default=(),
        description="Further addresses, [[source.standby]], tried in turn when the one in use can't be reached; each "
        "serves the same data under the same account.",
    )

    @property
    def skip_places(self) -> frozenset[tuple[str, int]]:
        """File and offset of each event to pass over."""
        return frozenset(
            (file, int(offset)) for file, _, offset in (place.rpartition(":") for place in self.skip_event)
        )


class HeartbeatSettings(Section):
    """[heartbeat]: the destination's row in headrace.heartbeat on the source, which shows that changes really flow."""

    enabled: bool = Field(
        default=True,
        description="Whether it is written. It never is on a server that replicates from another one.",
    )
    interval: Seconds = Field(default=5.0, description="Time between two beats, in seconds.")


class FilterSettings(Section):
    """[filter]: what is published. Tables: comma-separated regexes that match the whole of schema.table."""

    include: str = Field(default=r".*\..*", description="Tables that are published.")
    exclude: str = Field(default="", description="Tables that are not, even when include matches.")
    ddl: bool = Field(
        default=True,
        description="Schema changes of these tables, and of databases that hold some, as messages (Canal: "
        "canal.instance.filter.query.ddl, the other way round).",
    )
    dcl: bool = Field(
        default=False,
        description="Statements about accounts and their rights (Canal: canal.instance.filter.query.dcl, the other way "
        "round).",
    )
    dml_queries: bool = Field(
        default=False,
        description="The texts of the statements behind the rows, where the source writes them: "
        "binlog_rows_query_log_events, in MariaDB binlog_annotate_row_events (Canal: canal.instance.filter.query.dml, "
        "the other way round).",
    )
    rows: bool = Field(
        default=True, description="Changes of rows (Canal: canal.instance.filter.rows, the other way round)."
    )
    transactions: bool = Field(
        default=False,
        description="A message at the begin and one at the end of each transaction that changes these tables (Canal: "
        "canal.instance.filter.transaction.entry, the other way round).",
    )
    table_errors: Literal["halt", "skip"] = Field(
        default="halt",
        description="When rows do not fit their table, or its layout is not known: halt stops the destination, skip "
        "leaves these rows out with a log line (Canal: canal.instance.filter.table.error).",
    )

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


class RouteSettings(Section):
    """[route]: where messages go within the sink."""

    topic: Topic = Field(
        default="", description="The topic; required for Kafka, else by default the destination's name."
    )
    partition: Int = Field(default=0, ge=0, le=1_000_000, description="The partition that takes all messages.")


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

    @property
    def wants_marks(self) -> bool:
        """Whether anything is published at the begin and end of transactions."""
        message = self.message
        return bool(message.debezium.transaction_topic) if message.format == "debezium" else self.filter.transactions

    name: str = Field(description="Not a key: the file's name without .toml.")
    source: SourceSettings
    heartbeat: HeartbeatSettings = HeartbeatSettings()
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

    file: Path = Field(default=Path("headrace.toml"), description="Not a key: where headrace.toml was read.")
    destinations: dict[str, DestinationSettings]
