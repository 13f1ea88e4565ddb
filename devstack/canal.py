"""Canal's own Java client, with a program that uses it."""

from __future__ import annotations

import zlib
from pathlib import Path

from devstack.cache import Cache
from devstack.servers.jvm import compile_java, install_jars, java_command

VERSION = "1.1.8"
COORDINATES = tuple(f"com.alibaba.otter:canal.{part}:{VERSION}" for part in ("client", "protocol", "common"))


def reader(cache: Cache, source: Path, heap: str = "256m") -> list[str]:
    """The beginning of a command line that runs a class which uses the client. Raises Unavailable."""
    prefix = install_jars(
        cache,
        f"canal-client-{source.stem.lower()}",
        VERSION,
        COORDINATES,
        lambda fresh: compile_java(cache, [source], fresh),
        zlib.crc32(source.read_bytes()),
    )
    return [*java_command(cache, heap, "-cp", f"{prefix}/classes:{prefix}/lib/*"), source.stem]
