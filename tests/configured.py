"""Settings as the daemon reads them, with its adapters' sections; and parts of a destination that tests hand in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.cli.wiring import ADAPTERS, new_format
from headrace.destination.dependencies import Dependencies
from headrace.mysql.source import MysqlSource
from headrace.pipeline.projection import Projections
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.load import Loader


def load(path: Path, env: Mapping[str, str]) -> Settings:
    return Loader(ADAPTERS, env).load(path)


def destination_of(raw: dict[str, Any]) -> DestinationSettings:
    return Loader(ADAPTERS, {}).make_destination(raw)


def parts_of(config: DestinationSettings, *, store: Any = None, lock: Any = None, sink: Any = None) -> Dependencies:
    """Parts of a destination with one sink for all its runs."""
    source = MysqlSource(config, DaemonSettings(node="test"), Projections(config).captures)
    return Dependencies(
        store, lock, lambda: source, lambda: new_format(config), lambda _, __: sink, lambda: sink, lambda _: store
    )
