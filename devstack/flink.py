"""Flink's own JSON formats, with a program that uses them; no cluster is needed."""

from __future__ import annotations

import zlib
from pathlib import Path

from devstack.cache import Cache
from devstack.servers.jvm import compile_java, install_jars, java_command

VERSION = "2.3.0"
COORDINATES = tuple(f"org.apache.flink:flink-{part}:{VERSION}" for part in ("json", "table-runtime", "core"))


def program(cache: Cache, source: Path) -> list[str]:
    """Returns the beginning of a command line that runs a class which uses the formats. Raises Unavailable."""
    prefix = install_jars(
        cache,
        "flink-formats",
        VERSION,
        COORDINATES,
        lambda fresh: compile_java(cache, [source], fresh),
        zlib.crc32(source.read_bytes()),
    )
    return [*java_command(cache, "128m", "-cp", f"{prefix}/classes:{prefix}/lib/*"), source.stem]
