"""Settings of the model's brokers and topics, by default those of a cluster that devstack starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ClusterSettings:
    """What an operator of Kafka configures, and how long things take in the model, in seconds."""

    auto_create_topics: bool = True
    partitions: int = 1
    """Of a topic that is created automatically."""
    replication: int = 0
    """default.replication.factor; 0: as many as brokers."""
    min_isr: int = 0
    """min.insync.replicas; 0: 2 if there are several brokers."""
    max_message: int = 1_048_588
    max_transaction_timeout: float = 900.0
    unclean_elections: bool = False
    session_timeout: float = 4.0
    """Until the controller takes a broker that is gone for gone."""
    lag_time: float = 30.0
    """replica.lag.time.max.ms: until a replica that does not fetch is not in sync any more."""
    request_timeout: float = 30.0
    """request.timeout.ms of the brokers: until one that can't reach the controller gives up."""
    creation_time: float = 0.02
    """Until a topic that is created automatically exists."""
    rejoin_time: float = 0.2
    """Until the replicas of a broker that has come back are in sync."""
    settle_time: float = 0.0
    """Until a new leader knows the high watermark."""
    marker_time: float = 0.001
    """From the decision about a transaction until its markers are written."""
    load_time: float = 0.0
    """Until a new coordinator has loaded the state of its transactions."""
    timeout_scan: float = 10.0
    """transaction.abort.timed.out.transaction.cleanup.interval.ms: how often coordinators look for late
    transactions."""
    coordinator_partitions: int = 4
    """transaction.state.log.num.partitions."""


def settings_of_brokers(settings: ClusterSettings) -> list[str]:
    """Returns the settings of topics that the brokers' file has."""
    default = ClusterSettings()
    found = ["min.insync.replicas", "retention.ms"]
    found += ["max.message.bytes"] if settings.max_message != default.max_message else []
    return found + (["unclean.leader.election.enable"] if settings.unclean_elections else [])


def topic_defaults(settings: ClusterSettings, brokers: int) -> dict[str, str]:
    """Returns the settings of a topic that has none of its own; those that matter to clients."""
    return {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "max.message.bytes": str(settings.max_message),
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.insync.replicas": str(settings.min_isr or (2 if brokers > 1 else 1)),
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": str(settings.unclean_elections).lower(),
    }
