"""Canal's own Java client of a measured daemon, as a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devstack import canal
from devstack.cache import Cache
from devstack.process import clean_environment

_SOURCE = Path(__file__).with_name("canal") / "Count.java"
_HEAP = "512m"
"""A batch of 1,000 entries may have 32 MiB, and several times as much when it is parsed."""


@contextmanager
def reading(cache: Cache, address: str, destination: str, rows: int) -> Iterator[None]:
    """Runs a client that reads this many rows of a destination, once that is served. Raises SystemExit if it fails;
    callers that wait for the rows need not check it, because none are confirmed then."""
    host, _, port = address.rpartition(":")
    command = [*canal.reader(cache, _SOURCE, _HEAP), host, port, destination, str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, env=clean_environment()) as client:
        try:
            yield
        finally:
            failed = client.poll()
            client.kill()
        if failed:
            raise SystemExit(f"bench: Canal's client has ended with {failed}")
