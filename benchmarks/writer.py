"""Writes to MySQL during a measurement, in a separate process: once for each request, or at a steady rate."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle

import pymysql

_READ = 4096


def _reported() -> Iterator[None]:
    """Yields once for each byte on standard input."""
    while orders := os.read(0, _READ):
        for _ in orders:
            yield


def _steadily(rate: float) -> Iterator[None]:
    """Yields this many times per second, until standard input ends; delays are made up for."""
    ended = threading.Event()

    def wait_for_end() -> None:
        while os.read(0, _READ):
            """one that keeps its own time receives nothing"""
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    begun, count = time.monotonic(), 0
    while not ended.wait(max(0.0, begun + count / rate - time.monotonic())):
        count += 1
        yield


def main() -> None:
    """Reads the job as JSON from the command line: `connection`, `statements` that are run in turn, each a transaction,
    and `rate` per second, 0 for a statement for each byte of standard input. Prints a byte for each that is done; ends
    with standard input."""
    job = json.loads(sys.argv[1])
    connection = pymysql.connect(**job["connection"], autocommit=True)
    statements = cycle(job["statements"])
    with connection.cursor() as cursor:
        for _ in _steadily(job["rate"]) if job["rate"] else _reported():
            cursor.execute(next(statements))
            os.write(1, b".")
    connection.close()


if __name__ == "__main__":
    main()
