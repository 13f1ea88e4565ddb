"""The kinds of [sink] as models: every key with its type, its default and what it means."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from headrace.settings_message import KIB, MIB, Int, Seconds, Section, Size, Topic
from headrace.settings_values import split_servers


class KafkaSinkSettings(Section):
    """[sink] type = "kafka"."""

    type: Literal["kafka"] = Field(description="The kind of sink.")
    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(split_servers)] = Field(
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
    delivery: Literal["at_least_once", "exactly_once"] = Field(
        default="at_least_once",
        description="exactly_once: messages and position are written in Kafka transactions; consumers that read "
        "committed see each row once. The position is then kept in state_topic.",
    )
    transactional_id: str = Field(
        default="",
        description="exactly_once: who we are for the brokers, the same on every daemon that may run the destination; "
        "default: headrace- and the destination's name.",
    )
    transaction_interval: Seconds = Field(
        default=0.1,
        description="exactly_once: a Kafka transaction is committed after this time at the latest, in seconds.",
    )
    transaction_bytes: Size = Field(
        default=8 * MIB, description="exactly_once: a Kafka transaction is committed before that with so many bytes."
    )
    transaction_timeout: Seconds = Field(
        default=30.0,
        description="exactly_once: the brokers abort a transaction that its daemon has left, in seconds; consumers "
        "that read committed wait for that.",
    )
    state_topic: Topic = Field(
        default="__headrace_state",
        min_length=1,
        description="exactly_once: compacted topic of positions and schema history; made when it is missing.",
    )
    state_topic_replication: Int = Field(
        default=0, ge=0, le=32, description="Copies of state_topic when it is made; 0: as many as brokers, 3 at most."
    )


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
