"""Fetches Java libraries with all dependencies into a folder: with Maven if it is available, else with Apache Ivy.

Each file must be the one in jars.lock, by its SHA-256; `scripts/lock --jars` writes that list. Ivy is part of the PyPI
package pyspark, and its own default settings know the public repository."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from devstack import java, process
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.progress import say

PYSPARK = "pyspark==4.2.0"
LOCK = Path(__file__).with_name("jars.lock")
"""Lines in the form of sha256sum."""


def fetch(cache: Cache, coordinates: Sequence[str], target: Path) -> None:
    """Puts the jars of `group:artifact:version` coordinates and their runtime dependencies into `target`."""
    target.mkdir(parents=True, exist_ok=True)
    parts = [tuple(coordinate.split(":")) for coordinate in coordinates]
    if mvn := shutil.which("mvn"):
        error = with_maven(cache, mvn, parts, target)
        if error is None:
            check(target)
            return
        say(f"Maven did not get {', '.join(coordinates)} ({error}); trying Ivy ...")
        shutil.rmtree(target)
        target.mkdir()
    error = with_ivy(cache, parts, target)
    if error is not None:
        raise Unavailable(f"getting {', '.join(coordinates)} failed: {error}")
    check(target)


def check(folder: Path) -> None:
    """Compares the files of a folder with jars.lock. Raises Unavailable for one that differs or is missing."""
    known = {name: digest for digest, name in map(str.split, LOCK.read_text().splitlines())}
    for file in sorted(folder.iterdir()):
        if (found := sha256(file)) != known.get(file.name):
            said = f"{known[file.name]} is expected" if file.name in known else "it is not in the file"
            raise Unavailable(
                f"{file.name} was downloaded with the SHA-256 {found}, and by devstack/jars.lock {said}; after a "
                "change of versions run scripts/lock --jars."
            )


def sha256(file: Path) -> str:
    """Returns the digest of a file as sha256sum prints it."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def _run(command: Sequence[str], directory: Path, environment: dict[str, str]) -> str | None:
    done = process.run(command, environment, directory)
    if done.returncode == 0:
        return None
    said = (done.stdout + done.stderr).splitlines()
    # Ivy names the reason (no network, an unknown authority) in other lines than the result
    lines = [line for line in said if "Server access error" in line]
    lines = lines or [line for line in said if re.search(r"ERROR|FAILED|not found", line)]
    return " / ".join(line.strip() for line in lines[:3]) or f"exit status {done.returncode}"


def with_maven(cache: Cache, mvn: str, parts: Sequence[tuple[str, ...]], target: Path) -> str | None:
    """Fetches them with Maven, unchecked; returns why it failed."""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in parts
    )
    project = target / "pom.xml"
    project.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>devstack</groupId>'
        f"<artifactId>{target.parent.name}</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
    trusted = " ".join([os.environ.get("MAVEN_OPTS", ""), *java.network_options(cache)]).strip()
    environment = {**os.environ, "JAVA_HOME": str(java.home(cache)), "MAVEN_OPTS": trusted}
    options = ["-B", "-q", f"-Dmaven.repo.local={cache.folder('maven')}", "-f", str(project)]
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    with cache.lock("maven"):  # Maven's local repository does not support two writers
        error = _run([mvn, *options, *goal], target, environment)
    project.unlink()
    return error


def _ivy_jar(cache: Cache) -> Path:
    places = [
        Path(sysconfig.get_paths()["purelib"]),
        *sorted((Path(__file__).resolve().parent.parent / ".venv" / "lib").glob("python3*/site-packages")),
    ]
    for place in places:
        if jars := sorted((place / "pyspark" / "jars").glob("ivy-*.jar")):
            return jars[-1]

    def build(fresh: Path) -> None:
        say(f"downloading {PYSPARK} for the Ivy jar inside ...")
        java.pip_install(cache, PYSPARK, fresh / "package")
        for jar in (fresh / "package" / "pyspark" / "jars").glob("ivy-*.jar"):
            shutil.copy2(jar, fresh / jar.name)
        shutil.rmtree(fresh / "package")

    jars = sorted(cache.install("ivy", PYSPARK, build).glob("ivy-*.jar"))
    if not jars:
        raise Unavailable(f"there is neither Maven here nor an Ivy jar inside {PYSPARK}.")
    return jars[-1]


def with_ivy(cache: Cache, parts: Sequence[tuple[str, ...]], target: Path) -> str | None:
    """Fetches them with Ivy, unchecked; returns why it failed."""
    jar = _ivy_jar(cache)
    home = cache.folder("ivy")
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        ' conf="default->default"/>'
        for group, artifact, version in parts
    )
    project = target / "ivy.xml"
    project.write_text(
        '<ivy-module version="2.0"><info organisation="devstack" module="devstack"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    command = [
        str(java.executable(cache)),
        *java.network_options(cache),
        # else Ivy writes into the user's home
        f"-Divy.default.ivy.user.dir={home}",
        f"-Duser.home={home}",
        "-jar",
        str(jar),
        "-cache",
        str(home / "cache"),
        "-ivy",
        str(project),
        "-confs",
        "default",
        "-retrieve",
        f"{target}/[artifact]-[revision](-[classifier]).[ext]",
    ]
    with cache.lock("ivy"):
        error = _run(command, target, dict(os.environ))
    project.unlink()
    return error
