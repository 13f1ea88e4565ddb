"""The sections whose keys belong to adapters: what all of a kind share, and their capabilities."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from pydantic import Field

from headrace.rules.templates import Template
from headrace.rules.topics import ANY_NAME, TopicNames
from headrace_common.section import MIB, Int, Number, Seconds, Section, Size

MORE = "others come with packages of their own: pip install PACKAGE (docs/adapters.md)"
"""The remedy for a name that no adapter has."""
TOPIC = Template.parse("{topic}", ("topic",))


@dataclass(frozen=True, slots=True)
class Exclusive:
    """A resource that only one destination may use. Two with an equal `identity` can't run in one daemon."""

    key: str
    """The key of [sink] that names it."""
    value: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCapabilities:
    """The capabilities of a sink under its settings, for routing, checks and the message builder."""

    has_topics: bool = True
    """Whether topics and partitions have a meaning; if not, their keys in [route] are refused."""
    topic_names: TopicNames = ANY_NAME
    """The names that it accepts for topics."""
    needs_topic: bool = False
    """Whether [route] topic is required."""
    one_log: bool = False
    """Whether all topics go into one stream, whose order must be the binlog's."""
    address: Template = TOPIC
    """What it receives as a topic: the topic itself, or a name made of {topic}, {schema}, {table} and {partition}."""
    tag: Template | None = None
    """The tag of a message, made of {schema}, {table} and {type}; None for a sink without tags."""
    retries: bool = False
    """Whether it sends single messages again, and so must know which of them are about the same row."""
    parks: bool = False
    """Whether it parks messages that are refused."""
    parks_by: str = ""
    """The key of [sink] that would make it park; "" for a sink that never refuses a message."""
    exactly_once: bool = False
    """Whether it keeps the position itself, in one transaction with the messages."""
    gathers: int = 0
    """Bytes that it takes before it confirms the first of them; 0 for a sink that confirms each as soon as possible."""
    exclusive: Exclusive | None = None
    message_format: str = ""
    """The only format that it accepts, and then the default; "" for a sink that accepts any."""
    shares_by: str = ""
    """The key of [sink] that makes it need a service that daemons share; "" for a sink that needs none."""

    @property
    def units(self) -> bool:
        """Whether messages may have to wait for others about their rows."""
        return self.parks or self.retries


class SinkSettings(Section):
    """[sink]: where the messages go."""

    type: str = Field(description="The kind of sink.")

    @property
    @abstractmethod
    def capabilities(self) -> SinkCapabilities:
        """Returns the sink's capabilities under these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatCapabilities:
    """What a format requires from source and sink."""

    topics: frozenset[str] = frozenset()
    """Its own topics, for messages that are not about rows."""
    marks: bool | None = None
    """Whether it has messages for the begin and end of transactions; None: according to [filter] transactions."""
    enum_index: bool = False
    """Whether ENUM and SET are given as numbers."""
    time_zone: str = "UTC"
    """The zone of TIMESTAMP values."""
    queries: bool = False
    """Whether changes of rows have the statement that made them."""
    readable: bool = True
    """Whether the messages have enough to be read back."""


class MessageSettings(Section):
    """[message]: what a message looks like."""

    format: str = Field(default="canal", description="The format.")
    rows_per_message: Int = Field(
        default=0, ge=0, le=1_000_000, description="At most this many rows a message; 0: a message a rows event."
    )

    @property
    @abstractmethod
    def capabilities(self) -> FormatCapabilities:
        """Returns what the format requires under these settings."""

    def with_topic_prefix(self, prefix: str) -> Self:
        """Returns the same with `prefix` before each topic that the section itself names."""
        return self


class ParkingSettings(Section):
    """[parking]: messages that the sink refuses, where it says `park`."""

    store: str = Field(
        default="state",
        description="state: the destination's state store; mysql: the table headrace_parked_message of a MySQL server, "
        "which daemons of several machines share. With a lock service it has to be mysql.",
    )
    max_messages: Int = Field(
        default=100_000, ge=1, le=100_000_000, description="When so many wait, the destination stops instead."
    )
    max_bytes: Size = Field(default=1024 * MIB, description="The same in bytes of body, key and headers.")
    delay: Seconds = Field(default=10.0, description="Before a message is sent again for the first time.")
    delay_factor: Number = Field(default=2.0, ge=1, le=10, description="Each further wait is longer by this factor.")
    max_delay: Seconds = Field(default=600.0, description="And never longer than this.")
    attempts: Int = Field(
        default=20,
        ge=1,
        le=1_000_000,
        description="After so many attempts a message waits for an operator (NEEDS_OPERATOR).",
    )


class ClusterSettings(Section):
    """The section of a service by which several daemons share the destinations; its name is the service's."""

    service: ClassVar[str]


class Sections(Protocol):
    """The sections of adapters, by the name under which each is registered."""

    def section(self, kind: str, name: str) -> type[Section]:
        """Returns the section of an adapter. Raises LookupError."""

    def names(self, kind: str) -> Sequence[str]:
        """Returns the registered names of a kind: sink, message, parking, cluster or state."""
