"""The slow sink: reads a named pipe at a steady rate and discards the data."""

from __future__ import annotations

import os
import sys
import time

_PIECE = 1 << 16


def main() -> None:
    """Reads path and bytes per second from the command line; ends with the pipe's writer."""
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    pace, begun, size = float(sys.argv[2]), time.monotonic(), 0
    while piece := os.read(descriptor, _PIECE):
        size += len(piece)
        time.sleep(max(0.0, begun + size / pace - time.monotonic()))


if __name__ == "__main__":
    main()
