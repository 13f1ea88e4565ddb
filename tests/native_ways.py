"""Binlogs through native code and through Python alone, for its tests."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from headrace import native
from headrace.cli.wiring import new_format
from headrace.errors import NotUnderstood
from headrace.model import RowsChange, TableSchema
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.values import column_types as ct
from headrace.pipeline.message_builder import make_builder
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from tests import native_differential
from tests.configured import destination_of
from tests.made_binlog import Binlog
from tests.random_tables import Column as Column_
from tests.random_tables import Table

MODULE: Any = native.find().module
needs_native = pytest.mark.skipif(MODULE is None, reason="headrace-native is not installed: scripts/build-native")
WHOLE = native_differential.Reading(native_differential.WHOLE, [1 << 30])
RABBITMQ = {"type": "rabbitmq", "hosts": "h:5672", "user": "u", "password": "p", "exchange": "e"}


def plain(message: dict[str, Any] | None = None, **source: Any) -> DestinationSettings:
    """A destination's settings, without routing."""
    return destination_of(
        {
            "name": "shop",
            "source": {"host": "h", "user": "u", "password": "p", **source},
            "route": {"topic": "shop"},
            "message": message or {},
            "sink": {"type": "null"},
        }
    )


def both_ways_of(binlog: Binlog, message: dict[str, Any] | None = None, **source: Any) -> list[Any]:
    """What comes of a binlog by Python, and then by native code, fed whole."""
    config, data = plain(message, **source), bytes(binlog.packets)
    return [native_differential.outcome(data, config, module, WHOLE) for module in (None, MODULE)]


def used(data: bytes, config: DestinationSettings) -> dict[tuple[str, str], str]:
    """By table, why Python makes its rows."""
    builder = make_builder(config, new_format(config), "server", 5, MODULE)
    into = Receiver(rows=builder.emit, large=builder.emit_large, native=builder.native)
    made = Decoder(
        native_differential.WHOLE,
        into,
        captures=builder.captures,
        options=DecoderOptions.of(config, DaemonSettings()),
    )
    read_whole(made, data)
    assert builder.native is not None
    return builder.native.use.tables


def captured_schemas(data: bytes, config: DestinationSettings) -> dict[tuple[str, str], TableSchema]:
    schemas: dict[tuple[str, str], TableSchema] = {}

    def note(change: RowsChange) -> None:
        schemas[change.schema.schema, change.schema.table] = change.schema

    captures = make_builder(config, new_format(config), "server", 5).captures
    with contextlib.suppress(NotUnderstood):
        into = Receiver(rows=note)
        read_whole(Decoder(native_differential.WHOLE, into, captures=captures, options=DecoderOptions()), data)
    return schemas


def read_whole(reader: Decoder, data: bytes) -> None:
    at, more = 0, True
    while more:
        at, more = reader.feed(data, at, lambda: False)


def table(name: str, number: int, *columns: Column_) -> Table:
    keyed = [Column_(ct.LONG, b"", ct.LONG, 4), *columns]
    return Table(random.Random(1), name, number, keyed, [0])


SOURCE = {"host": "h", "user": "u", "password": "p"}


def settings_of(message: dict[str, Any], **more: Any) -> DestinationSettings:
    return destination_of(
        {
            "name": "shop",
            "source": SOURCE,
            "route": {"topic": "shop"},
            "sink": {"type": "jsonl", "path": "-"},
            "message": message,
            **more,
        }
    )


TINY = Column_(ct.TINY, b"", ct.TINY, 1)
