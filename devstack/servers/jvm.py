"""Shared by the servers on the Java virtual machine: a folder of jars, our own classes, a command line."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from devstack import java, maven
from devstack.cache import Cache
from devstack.errors import StartFailed
from devstack.process import clean_environment
from devstack.progress import say

# compiles where there is a runtime and no javac
COMPILER = "org.eclipse.jdt:ecj:3.40.0"


def install_jars(
    cache: Cache,
    name: str,
    version: str,
    coordinates: Sequence[str],
    finish: Callable[[Path], None] | None = None,
    revision: int = 1,
) -> Path:
    """Returns the prefix with the jars in `lib`; `finish` may add to it, and a change of `finish` is a new
    `revision`."""

    def build(fresh: Path) -> None:
        say(f"downloading {name} {version} with its libraries ...")
        maven.fetch(cache, coordinates, fresh / "lib")
        if finish is not None:
            finish(fresh)

    return cache.install(name, f"{' '.join(coordinates)} {revision}", build)


def compile_java(cache: Cache, sources: Sequence[Path], prefix: Path) -> None:
    """Compiles sources against the jars in `lib` into `classes` with Eclipse's compiler, which needs no JDK."""
    with tempfile.TemporaryDirectory(dir=prefix) as scratch:
        maven.fetch(cache, [COMPILER], Path(scratch))
        jar = next(Path(scratch).glob("ecj-*.jar"))
        classpath = ":".join(str(path) for path in sorted((prefix / "lib").glob("*.jar")))
        options = ["-17", "-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", classpath]
        options += ["-d", str(prefix / "classes")]
        done = subprocess.run(
            [str(java.executable(cache)), "-jar", str(jar), *options, *(str(source) for source in sources)],
            capture_output=True,
            text=True,
            env=clean_environment(),
        )
    if done.returncode != 0:
        say((done.stdout + done.stderr)[-2000:])
        names = ", ".join(source.name for source in sources)
        raise StartFailed(f"{names} could not be compiled; what the compiler said is above.")


def java_command(cache: Cache, heap: str, *options: str, collector: str = "SerialGC") -> list[str]:
    """Returns the beginning of a java command line for a server that shares a small machine with others."""
    return [
        str(java.executable(cache)),
        f"-Xms{heap}",
        f"-Xmx{heap}",
        f"-XX:+Use{collector}",
        *java.short_lived(cache),
        "-XX:-UsePerfData",  # else each writes a file to the system's temporary folder
        "-Djava.awt.headless=true",
        "-Djava.net.preferIPv4Stack=true",
        *options,
    ]
