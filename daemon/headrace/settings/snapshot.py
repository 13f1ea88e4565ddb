"""The keys of [source] about the existing rows of tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace_common.section import HostName, Int, Number, OptionalTls, Seconds, SecondsOrOff, Section

READS_ROWS = frozenset({"initial", "when_needed"})
"""Modes in which a first start publishes the existing rows of tables."""


class SnapshotSourceSettings(Section):
    """[source.snapshot_source]: a replica whose tables are read instead of the source's."""

    host: HostName = Field(description="Host name or address of the MySQL server.")
    port: Int = Field(default=3306, ge=1, le=65535, description="Its port.")


class SnapshotSettings(OptionalTls):
    """Part of [source]."""

    snapshot: Literal["auto", "initial", "when_needed", "never", "schema_only", "schema_only_recovery"] = Field(
        default="auto",
        description="What happens to the rows that tables have when a destination begins. initial: they are published, "
        "with the changes from then on; when_needed: also when the source has lost the stored position, or the state "
        "is lost; never, schema_only: changes only; schema_only_recovery: as schema_only, and each start reads the "
        'tables\' schemas again. auto: initial when `start` is "latest", else never.',
    )
    snapshot_parallelism: Int = Field(default=1, ge=1, le=16, description="Tables that are read at a time.")
    snapshot_chunk_seconds: Seconds = Field(
        default=0.5, description="How long the server should take for one chunk; chunks are made larger or smaller."
    )
    snapshot_max_rows_per_second: Number = Field(
        default=0, ge=0, description="Rows that are read in a second at most; 0: no limit."
    )
    snapshot_max_replica_lag: SecondsOrOff = Field(
        default=0.0,
        description="While the server that is read lags further behind its source, reading waits; 0: never.",
    )
    snapshot_max_threads_running: Int = Field(
        default=0, ge=0, description="While more threads run on the server that is read, reading waits; 0: never."
    )
    signal_sql: bool = Field(
        default=False,
        description="Whether `where` of a row of headrace.signal may be any SQL: who writes there can then find out "
        "what every table has that our account may read. Else it is a condition as in [[filter.where]], on columns "
        "that no rule hides.",
    )
    snapshot_source: SnapshotSourceSettings | None = Field(
        default=None,
        description="A replica, [source.snapshot_source], whose tables are read instead; it needs GTIDs, and serves "
        "the same account.",
    )
