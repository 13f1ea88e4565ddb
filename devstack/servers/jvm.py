"""What the servers on the Java virtual machine have in common: a folder of jars, and a short command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from devstack import java, maven
from devstack.cache import Cache
from devstack.progress import say


def install_jars(
    cache: Cache,
    name: str,
    version: str,
    coordinates: Sequence[str],
    finish: Callable[[Path], None] | None = None,
    revision: int = 1,
) -> Path:
    """The prefix with the jars in `lib`; `finish` may add to it, and a change of `finish` is a new `revision`."""

    def build(fresh: Path) -> None:
        say(f"downloading {name} {version} with its libraries ...")
        maven.fetch(cache, coordinates, fresh / "lib")
        if finish is not None:
            finish(fresh)

    return cache.install(name, f"{' '.join(coordinates)} {revision}", build)


def java_command(cache: Cache, heap: str, *options: str) -> list[str]:
    """The beginning of a java command line for a server that shares a small machine with others."""
    return [
        str(java.executable(cache)),
        f"-Xms{heap}",
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",  # else each writes a file to the system's temporary folder
        "-Djava.awt.headless=true",
        "-Djava.net.preferIPv4Stack=true",
        *options,
    ]
