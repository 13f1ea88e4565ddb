"""What every part of a destination is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from headrace.destination.status import DestinationStatus
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings


@dataclass(frozen=True, slots=True)
class Context:
    """One destination as it is configured, and its live facts."""

    settings: DestinationSettings
    daemon: DaemonSettings
    status: DestinationStatus

    @property
    def name(self) -> str:
        """The destination's name."""
        return self.settings.name

    @property
    def log(self) -> Any:
        """A log whose lines name the destination."""
        return structlog.get_logger("headrace.destination").bind(destination=self.name)
