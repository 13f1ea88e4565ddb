"""The settings of a destination for decoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.mysql.undecodable import UndecodableTexts
from headrace.mysql.values.column_types import ValueOptions
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """Options of one destination. `max_spool` and `max_event` are in bytes; `skip_events` are positions,
    `file:offset`."""

    destination: bytes = b""
    """Its name. Heartbeats of other destinations are skipped: otherwise each of many destinations of one server would
    decode all."""
    values: ValueOptions = field(default_factory=ValueOptions)
    rows: bool = True
    ddl: bool = True
    dcl: bool = False
    dml_queries: bool = False
    two_numbers: bool = False
    """Whether an updated row may become two messages in different partitions, and uses two numbers."""
    partial_images: bool = True
    """Whether row images that lack columns are accepted."""
    skip_broken_tables: bool = False
    undecodable: UndecodableTexts = field(default_factory=UndecodableTexts)
    """What is published for texts without Unicode characters, and how many there were."""
    origins: bool = False
    """Whether changes have the server and session that made them, which some formats publish."""
    skip_events: frozenset[str] = frozenset()
    positional: bool = False
    """Whether columns with unknown names are called @1, @2 and so on."""
    spool: Path | None = None
    max_spool: int = 1 << 30
    max_event: int = 1 << 30

    @classmethod
    def of(cls, settings: DestinationSettings, daemon: DaemonSettings) -> DecoderOptions:
        """Returns the options of a destination's settings."""
        source, wanted, message = settings.source, settings.filter, settings.message.capabilities
        return cls(
            destination=settings.name.encode(),
            values=ValueOptions(message.time_zone, message.enum_index, source.max_event),
            rows=wanted.rows,
            ddl=wanted.ddl,
            dcl=wanted.dcl,
            dml_queries=wanted.dml_queries or message.queries,
            two_numbers=bool(settings.route.partition_hash),
            partial_images=source.row_image == "any",
            skip_broken_tables=wanted.table_errors == "skip",
            undecodable=UndecodableTexts(stop=source.undecodable_text == "stop", published=wanted.publishes),
            origins=True,
            skip_events=frozenset(source.skip_event),
            spool=daemon.spool,
            max_spool=source.max_spool,
            max_event=source.max_event,
        )
