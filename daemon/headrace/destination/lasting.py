"""What lives as long as a destination, and each of its runs works with."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.destination.checkpointer import Checkpointer
from headrace.destination.operator import Operator
from headrace.destination.outage import SinkOutage
from headrace.destination.parts import Context, Parts
from headrace.destination.unconfirmed import Unconfirmed


@dataclass(frozen=True, slots=True)
class Lasting:
    """Of one destination."""

    context: Context
    parts: Parts
    checkpointer: Checkpointer
    unconfirmed: Unconfirmed
    outage: SinkOutage
    operator: Operator
