"""What makes libraries do the same under the same seed: they know nothing of a simulation."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import aiokafka.cluster
import prometheus_client
from aiokafka.structs import BrokerMetadata
from uvicorn.protocols.http.h11_impl import H11Protocol


class _Broker(BrokerMetadata):  # type: ignore[misc]
    """A broker whose place in a set does not depend on the address of None, by which Python 3.11 hashes it."""

    def __hash__(self) -> int:
        return hash((self.nodeId, self.host, self.port))


def _number_of(connection: Any, numbers: Iterator[int] = count(1)) -> int:  # noqa: B008 - one for all is meant
    """Returns a hash that does not depend on the address: the server visits its connections in that order."""
    return int(connection.__dict__.setdefault("sim_number", next(numbers)))


def fixed_hashes() -> None:
    """Starts this program again if texts are hashed at random: sets of libraries are visited in that order."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})


def seed_libraries(seed: int) -> None:
    """Seeds what libraries take from the modules that they share."""
    random.seed(seed)
    aiokafka.cluster.BrokerMetadata = _Broker
    H11Protocol.__hash__ = _number_of  # type: ignore[assignment]
    # What it says of the real process differs each time, in length too.
    prometheus_client.ProcessCollector.collect = lambda self: []  # type: ignore[method-assign]
