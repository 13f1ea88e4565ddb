"""Canal clients of others: its own Java client with a program that uses it, and the Python client of PyPI."""

from __future__ import annotations

import zlib
from pathlib import Path

from devstack import java
from devstack.cache import Cache
from devstack.servers.jvm import compile_java, install_jars, java_command

VERSION = "1.1.8"
COORDINATES = tuple(f"com.alibaba.otter:canal.{part}:{VERSION}" for part in ("client", "protocol", "common"))
# later versions can't read what protoc made for the Python client in 2019
PYTHON = ("canal-python==0.4", "protobuf==3.20.3")


def reader(cache: Cache, source: Path, heap: str = "256m") -> list[str]:
    """Returns the beginning of a command line that runs a class which uses the client. Raises Unavailable."""
    prefix = install_jars(
        cache,
        f"canal-client-{source.stem.lower()}",
        VERSION,
        COORDINATES,
        lambda fresh: compile_java(cache, [source], fresh),
        zlib.crc32(source.read_bytes()),
    )
    return [*java_command(cache, heap, "-cp", f"{prefix}/classes:{prefix}/lib/*"), source.stem]


def python_client(cache: Cache) -> dict[str, str]:
    """Returns variables with which a Python program can import `canal`, with the protobuf that it needs. Raises
    Unavailable."""

    def build(fresh: Path) -> None:
        for requirement in PYTHON:
            java.pip_install(cache, requirement, fresh)

    prefix = cache.install("canal-python", " ".join(PYTHON), build)
    return {"PYTHONPATH": str(prefix), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
