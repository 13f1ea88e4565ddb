"""What makes libraries do the same under the same seed: they know nothing of a simulation."""

from __future__ import annotations

import os
import random
import sys

import aiokafka.cluster
from aiokafka.structs import BrokerMetadata


class _Broker(BrokerMetadata):  # type: ignore[misc]
    """A broker whose place in a set does not depend on the address of None, by which Python 3.11 hashes it."""

    def __hash__(self) -> int:
        return hash((self.nodeId, self.host, self.port))


def fixed_hashes() -> None:
    """Starts this program again if texts are hashed at random: sets of libraries are visited in that order."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONHASHSEED": "0"})


def seed_libraries(seed: int) -> None:
    """Seeds what libraries take from the modules that they share."""
    random.seed(seed)
    aiokafka.cluster.BrokerMetadata = _Broker
