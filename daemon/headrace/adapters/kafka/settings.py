"""The section [sink] of type kafka as a model."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from headrace.rules.topics import KAFKA
from headrace.settings.adapters import SinkCapabilities, SinkSettings
from headrace_common.section import KIB, MIB, Hosts, Int, Seconds, Size, TlsSection, Topic

_HIGHEST_LEVELS = {"gzip": 9, "lz4": 12, "zstd": 19}
_DEFAULT_LEVELS = {"gzip": 6, "lz4": 1, "zstd": 1}
"""Above these levels each saved byte costs much more; docs/sinks.md has the figures."""


class KafkaSinkSettings(SinkSettings, TlsSection):
    """[sink] type = "kafka"."""

    type: Literal["kafka"] = Field(description="The kind of sink.")
    bootstrap_servers: Hosts = Field(description='Brokers to begin with: "host:port", comma-separated, or a list.')
    client_id: str = Field(default="headrace", min_length=1, description="Our name in the brokers' logs and quotas.")
    compression: Literal["none", "gzip", "lz4", "zstd", "snappy"] = Field(
        default="none", description="Compression of record batches."
    )
    compression_level: Int | None = Field(
        default=None,
        description="How hard that tries: gzip 1 to 9, lz4 1 to 12, zstd 1 to 19. Default: 6 for gzip, else 1.",
    )
    batch_bytes: Size = Field(
        default=900 * KIB, description="Largest record batch; stays below the brokers' message.max.bytes."
    )
    max_in_flight_bytes: Size = Field(default=16 * MIB, description="Bytes handed over and not yet confirmed.")
    request_timeout: Seconds = Field(default=30.0, description="Limit for a broker's answer.")
    delivery: Literal["at_least_once", "exactly_once"] = Field(
        default="at_least_once",
        description="exactly_once: messages and position are written in Kafka transactions; consumers that read "
        "committed see each row once. The position is then kept in state_topic.",
    )
    transactional_id: str = Field(
        default="",
        description="exactly_once: the producer's transactional.id, the same on every daemon that may run the "
        "destination; default: headrace- and the destination's name.",
    )
    transaction_interval: Seconds = Field(
        default=0.015,
        description="exactly_once: the least time from a commit to that of the next change. A quarter of "
        "transaction_timeout is used if that is less. The time is longer for a backlog (60 ms, and up to 0.2 s with "
        "many bytes), and while commits take long (up to 1 s). Choose less than [source] stall_after, after which "
        "the waiting changes count as stalled.",
    )
    transaction_bytes: Size = Field(
        default=16 * MIB, description="exactly_once: a Kafka transaction is committed before that with so many bytes."
    )
    transaction_timeout: Seconds = Field(
        default=30.0,
        description="exactly_once: the brokers abort a transaction that its daemon has left; consumers "
        "that read committed wait for that.",
    )
    create_topics: bool = Field(
        default=False,
        description="Whether missing topics are made, with the partitions that [route] asks for; else the brokers "
        "decide (auto.create.topics.enable).",
    )
    topic_replication: Int = Field(
        default=0, ge=0, le=32, description="Copies of a topic that is made; 0: as many as brokers, 3 at most."
    )
    on_oversize: Literal["halt", "split", "park"] = Field(
        default="halt",
        description="A message that is larger than the topic takes (max.message.bytes). halt: the destination stops; "
        "split: it is split into messages of fewer rows, and halts when one row is still too large; park: it is "
        "parked with what comes later for its rows ([parking]), and others go on.",
    )
    max_request_size: Size | None = Field(
        default=None, description="The largest message, in bytes. Default: what the topic's max.message.bytes allows."
    )
    tls: Literal["disabled", "required"] = Field(
        default="disabled", description="required: the connections are encrypted (security.protocol)."
    )
    sasl_mechanism: Literal["none", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = Field(
        default="none", description="How the account authenticates (sasl.mechanism); none: not at all."
    )
    user: str = Field(default="", description="The account, for PLAIN and SCRAM.")
    password: SecretStr = Field(default=SecretStr(""), description='Its password; best as "${NAME}".')
    oauth_token_url: str = Field(
        default="", description="OAUTHBEARER: where a token is fetched, with user and password as the client's."
    )
    oauth_scope: str = Field(default="", description="OAUTHBEARER: the scope that is asked for.")
    state_topic: Topic = Field(
        default="__headrace_state",
        min_length=1,
        description="exactly_once: compacted topic of positions and schema history; made when it is missing.",
    )
    state_topic_replication: Int = Field(
        default=0, ge=0, le=32, description="Copies of state_topic when it is made; 0: as many as brokers, 3 at most."
    )
    parked_topic: Topic = Field(
        default="__headrace_parked",
        min_length=1,
        description="exactly_once: compacted topic that parked messages wait in; made when it is missing.",
    )

    options: dict[str, bool | int | str] = Field(
        default={},
        description="Further arguments of aiokafka's clients, by their names there, such as metadata_max_age_ms. Each "
        "goes to those of AIOKafkaProducer, AIOKafkaConsumer and AIOKafkaAdminClient that have it.",
    )

    @property
    def capabilities(self) -> SinkCapabilities:
        return SinkCapabilities(
            topic_names=KAFKA,
            needs_topic=True,
            parks=self.on_oversize == "park",
            parks_by="on_oversize",
            exactly_once=self.delivery == "exactly_once",
            gathers=self.transaction_bytes if self.delivery == "exactly_once" else 0,
        )

    def transactional_id_of(self, destination: str) -> str:
        """Returns the transactional id for exactly-once delivery."""
        return self.transactional_id or f"headrace-{destination}"

    @property
    def level(self) -> int:
        """Returns the level of the compression; 0 if it has none."""
        return self.compression_level or _DEFAULT_LEVELS.get(self.compression, 0)

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, bool | int | str]) -> dict[str, bool | int | str]:
        if options:
            from headrace.adapters.kafka.options import faults

            if found := faults(options):
                raise ValueError("; ".join(found))
        return options

    @model_validator(mode="after")
    def _check_level(self) -> Self:
        if (level := self.compression_level) is None:
            return self
        if (most := _HIGHEST_LEVELS.get(self.compression, 0)) == 0:
            raise ValueError(f'compression_level has no meaning with compression = "{self.compression}"')
        if not 1 <= level <= most:
            raise ValueError(f"compression_level of {self.compression} should be from 1 to {most}, not {level}")
        return self

    @model_validator(mode="after")
    def _check_sasl(self) -> Self:
        given, mechanism = self.model_fields_set, self.sasl_mechanism
        oauth = {"oauth_token_url", "oauth_scope"}
        meaningless = {"user", "password", *oauth} if mechanism == "none" else oauth
        if mechanism != "OAUTHBEARER" and (strange := sorted(given & meaningless)):
            raise ValueError(f'{", ".join(strange)} has no meaning with sasl_mechanism = "{mechanism}"')
        if mechanism != "none" and not (self.user and self.password.get_secret_value()):
            raise ValueError(f'sasl_mechanism = "{mechanism}" needs user and password')
        if mechanism == "OAUTHBEARER" and not self.oauth_token_url:
            raise ValueError('sasl_mechanism = "OAUTHBEARER" needs oauth_token_url')
        if self.oauth_token_url and not re.match(r"https?://[^/\s]", self.oauth_token_url):
            raise ValueError('oauth_token_url should begin with "https://", or with "http://" and a host')
        if "@" in self.oauth_token_url.split("//", 1)[-1].split("/", 1)[0]:
            raise ValueError("oauth_token_url should have no account: there are the keys user and password")
        return self
