"""What makes libraries do the same under the same seed: they know nothing of a simulation."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import aio_pika.tools
import aiokafka.cluster
import aiormq.base
import aiormq.tools
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


class _Set:
    """What aiormq and aio-pika use of a set, on a dictionary, which is in the order of entry."""

    def __init__(self: Any, items: Iterable[Any] = ()) -> None:
        super().__init__(dict.fromkeys(items))  # type: ignore[call-arg]

    def add(self: Any, item: Any) -> None:
        self[item] = None

    def remove(self: Any, item: Any) -> None:
        del self[item]


class _Ordered(_Set, dict[Any, None]):
    def pop(self) -> Any:  # type: ignore[override]
        return self.popitem()[0]


class _WeakOrdered(_Set, WeakKeyDictionary[Any, None]):
    """The same with weak references."""


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
    futures: Any = aiormq.base
    callbacks: Any = aio_pika.tools
    limits: Any = aiormq.tools.Countdown
    futures.set = callbacks.set = _Ordered
    callbacks.WeakSet = _WeakOrdered
    limits._now = staticmethod(lambda: asyncio.get_running_loop().time())
