"""The sections of a destination's file as models, and the whole configuration made of them and headrace.toml's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, SecretStr, SerializeAsAny

from headrace.settings.adapters import ClusterSettings, MessageSettings, ParkingSettings, SinkSettings
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings, HttpSettings, LogSettings, StateSettings
from headrace.settings.route import FilterSettings, RouteSettings
from headrace.settings.snapshot import SnapshotSettings
from headrace.settings.values import Start, StartLatest, parse_file_position, parse_start
from headrace_common.section import MIB, HostName, Int, Number, Seconds, SecondsOrOff, Section, Size, SizeOrOff


def _split_positions(value: Any) -> Any:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise ValueError('should be a list of positions such as ["mysql-bin.000003:1234"]')
    return tuple(parse_file_position(part) for part in parts if not isinstance(part, str) or part.strip())


class StandbySettings(Section):
    """[[source.standby]]: another address of the same data."""

    host: HostName = Field(description="Host name or address of the MySQL server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="Its port.")


class SourceSettings(SnapshotSettings):
    """[source]: the MySQL server whose binlog is read."""

    host: HostName = Field(description="Host name or address of the MySQL server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="Its port.")
    user: str = Field(min_length=1, description="The account; needs REPLICATION SLAVE, REPLICATION CLIENT and SELECT.")
    password: SecretStr = Field(description='The account\'s password; best as "${NAME}" or "${file:/path}".')
    start: Annotated[Start, PlainValidator(parse_start), PlainSerializer(repr)] = Field(
        default=StartLatest(),
        description='Where to begin when no position is stored: "earliest", "latest", "file:offset", a GTID set, '
        "or an RFC 3339 time. A time before the oldest binlog is refused.",
    )
    on_state_lost: Literal["fail", "start"] = Field(
        default="fail",
        description='When `start` is "latest", and nothing is stored of a destination that has run before, as its '
        "schema history or its heartbeat row shows. fail: wait for an operator; start: begin at the end of the binlog, "
        "and pass over what was written meanwhile.",
    )
    server_id: Int = Field(
        default=0,
        ge=0,
        le=(1 << 32) - 1,
        description="Our id as a replica, unique among all replicas of the source; 0 derives one from node and "
        "destination.",
    )
    connect_timeout: Seconds = Field(
        default=10.0, description="Limit for connecting and for each answer before the stream."
    )
    heartbeat: Seconds = Field(default=5.0, description="After this long without events the source sends a heartbeat.")
    stall_after: Seconds = Field(
        default=10.0,
        description="STALLED (sink) once messages wait and none was confirmed for so long; STALLED "
        "(source) once the source is ahead of what came and no byte came for so long.",
    )
    row_image: Literal["full", "any"] = Field(
        default="full",
        description="full: a source whose binlog_row_image is not FULL is refused; any: it is read, and messages lack "
        "the columns that its rows lack.",
    )
    undecodable_text: Literal["replace", "stop"] = Field(
        default="replace",
        description="What becomes of a text with codes that have no Unicode character. replace: it is published as "
        "SELECT prints it, with ? for each of them, and the destination is DEGRADED; stop: the destination stops, "
        "unless [filter] does not publish the column, or leaves such rows out by table_errors.",
    )
    skip_event: Annotated[tuple[str, ...], BeforeValidator(_split_positions)] = Field(
        default=(),
        description='Events to pass over, each by where it begins: "mysql-bin.000003:1234". What they changed is not '
        "published; it is meant for one event that stops the destination for good.",
    )
    max_event: Size = Field(
        default=256 * MIB,
        description="Bytes of one event; a larger one stops the destination, and so does a row whose message has more "
        "than twice as many. The process may need four times as much memory for it.",
    )
    max_spool: Size = Field(
        default=1024 * MIB,
        description="Bytes that rows of prepared XA transactions, and after a SAVEPOINT, may take on disk; "
        "beyond it the destination stops.",
    )

    semi_sync: Literal["off", "archive", "sink"] = Field(
        default="off",
        description="archive, sink: headrace is a semi-synchronous replica, and acknowledges a transaction once it is "
        "in the archive, or the sink has confirmed it; the source must have semi-synchronous replication enabled.",
    )
    on_position_lost: Literal["fail", "next_file", "earliest", "latest", "resnapshot"] = Field(
        default="fail",
        description="When the source can't serve the stored position any more. fail: wait for an operator; next_file: "
        "go on with the next binlog when a scan proves that the present one is cut off (else as fail); earliest: with "
        "the oldest binlog; latest: with what is written from now on; resnapshot: with that, and all rows are "
        "published again. What is given up is logged, counted and kept.",
    )
    on_diverged: Literal["fail", "continue"] = Field(
        default="fail",
        description="When the server lacks transactions that were published already (after a failover, a restore or a "
        "reset). fail: wait for an operator; continue: go on, and report which.",
    )
    retention_warning: Number = Field(
        default=0.25,
        ge=0,
        le=1,
        description="Warn when less than this share of the time that the source keeps binlogs is left before ours is "
        "purged; 0: never.",
    )
    read_only: Literal["accept", "refuse"] = Field(
        default="accept", description="Whether a server with read_only, such as a replica, is taken as source."
    )
    max_replica_lag: SecondsOrOff = Field(
        default=0.0,
        description="A replica that lags further behind its own source than this, or does not replicate, is refused at "
        "the start; 0: any is accepted.",
    )
    standby: tuple[StandbySettings, ...] = Field(
        default=(),
        description="Further addresses, [[source.standby]], tried in turn when the one in use can't be reached; each "
        "serves the same data under the same account.",
    )

    @property
    def snapshot_mode(self) -> str:
        """Returns `snapshot`, with auto resolved."""
        if self.snapshot != "auto":
            return self.snapshot
        return "initial" if isinstance(self.start, StartLatest) else "never"

    @property
    def lost_policy(self) -> str:
        """Returns `on_position_lost`, by default derived from `snapshot`."""
        given = "on_position_lost" in self.model_fields_set
        return "resnapshot" if self.snapshot == "when_needed" and not given else self.on_position_lost


class HeartbeatSettings(Section):
    """[heartbeat]: the destination's row in headrace.heartbeat on the source, which shows that changes really flow."""

    enabled: bool = Field(
        default=True,
        description="Whether it is written. It never is on a server that replicates from another one.",
    )
    interval: Seconds = Field(default=5.0, description="Time between two heartbeats.")


class QueueSettings(Section):
    """[queue]: what lies between reader and sink."""

    bytes: SizeOrOff = Field(
        default=0,
        description="Budget for raw and formatted bytes that are not confirmed; when it is used up, reading waits. "
        "0: 8 MiB, or for exactly_once one and a half times [sink] transaction_bytes, so that one transaction gathers "
        "while another is committed.",
    )
    linger: SecondsOrOff = Field(
        default=0.005,
        description="While little comes, the source is read no more often than once in this time, so that changes "
        "share requests to the sink; in four times this while nothing comes that is published. 0: each is read as it "
        "comes.",
    )


_QUEUE_BYTES = 8 * MIB
"""160 MB/s if a broker takes 50 ms to confirm. More is no faster here, and exceeds the processor's caches."""


class DestinationSettings(Section):
    """A file of the destinations folder: one MySQL source and where its changes go. What the file says of [message],
    [sink] and [parking] is validated by the adapter that it names, so these come as sections (see `load`)."""

    name: str = Field(description="Not a key: the file's name without .toml.")
    source: SourceSettings
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    archive: ArchiveSettings | None = Field(
        default=None, description="Without it the source's own binlogs are all that can be read."
    )
    filter: FilterSettings = FilterSettings()
    message: SerializeAsAny[MessageSettings]
    route: RouteSettings = RouteSettings()
    queue: QueueSettings = QueueSettings()
    parking: SerializeAsAny[ParkingSettings]
    state: SerializeAsAny[StateSettings] | None = Field(
        default=None, description="Instead of [state] of headrace.toml, for this destination."
    )
    sink: SerializeAsAny[SinkSettings]

    @property
    def exactly_once(self) -> bool:
        """Returns whether messages and position are written in transactions of the sink."""
        return self.sink.capabilities.exactly_once

    @property
    def queue_bytes(self) -> int:
        """Returns the budget for unconfirmed bytes."""
        return self.queue.bytes or max(_QUEUE_BYTES, self.sink.capabilities.gathers * 3 // 2)

    @property
    def parks(self) -> bool:
        """Returns whether messages that the sink refuses are parked, so that others can continue."""
        return self.sink.capabilities.parks

    @property
    def wants_marks(self) -> bool:
        """Returns whether anything is published at the begin and end of transactions."""
        marks = self.message.capabilities.marks
        return self.filter.transactions if marks is None else marks


class MainSettings(Section):
    """headrace.toml. A section of a cluster service comes as `cluster`, validated by its adapter."""

    daemon: DaemonSettings = Field(default_factory=DaemonSettings)
    state: SerializeAsAny[StateSettings] = StateSettings()
    cluster: SerializeAsAny[ClusterSettings] | None = Field(
        default=None, description="Without it: one daemon, a file lock, an embedded store."
    )
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()

    @property
    def service(self) -> str:
        """Returns the name of the cluster service, and of its section; "" without one."""
        return self.cluster.service if self.cluster is not None else ""


class Settings(MainSettings):
    """The whole configuration: headrace.toml and all destinations, complete and checked."""

    file: Path = Field(default=Path("headrace.toml"), description="Not a key: where headrace.toml was read.")
    destinations: dict[str, DestinationSettings]

    def state_of(self, destination: DestinationSettings) -> StateSettings:
        """Returns the store of a destination's position, "auto" resolved."""
        state = destination.state or self.state
        if destination.exactly_once:
            kind = destination.sink.type
        elif state.store == "auto":
            kind = self.service or "sqlite"
        else:
            return state
        return state.model_copy(update={"store": kind})
