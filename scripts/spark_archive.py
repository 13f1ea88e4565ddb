"""Packs headrace-spark.tar.gz, which Spark unpacks beside its executors, and headrace-spark.py, which it starts. Run by
scripts/build-spark-archive.

The packages are those of the Python that runs this, so the archive has what was tested here, compiled ones included: it
is for the same version of Python and the same kind of machine. A folder of packages needs no tool to be made and no
path in it is absolute, and unlike a zip file it may hold compiled modules. Spark and py4j are the cluster's own.
"""

from __future__ import annotations

import ast
import gzip
import io
import sys
import tarfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OURS = (ROOT / "common/headrace_common", ROOT / "documents/headrace_documents", ROOT / "spark_consumer/headrace_spark")
SPARKS = {"pyspark", "py4j"}
FOLDER = "headrace-packages"
"""Where the archive is unpacked, in the directory in which drivers and executors run; no name of a package."""
MAIN = f'''\
"""Starts headrace-spark under spark-submit."""

import os
import sys

if os.path.isdir("{FOLDER}"):
    sys.path.insert(0, os.path.abspath("{FOLDER}"))

from headrace_spark.cli.main import main

sys.exit(main())
'''


def imported() -> set[str]:
    """The distributions that our packages import."""
    known = packages_distributions()
    names: set[str] = set()
    for path in (path for package in OURS for path in package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return {canonicalize_name(known[name][0]) for name in names if name in known}


def needed(name: str, extras: Iterable[str] = ()) -> set[str]:
    """The distributions that one asks for here, itself included."""
    found: set[str] = set()
    todo = [(canonicalize_name(name), frozenset(extras))]
    while todo:
        one, some = todo.pop()
        if one in found or one in SPARKS:
            continue
        try:
            lines = distribution(one).requires or []
        except PackageNotFoundError:
            sys.exit(f"the package {one} is not installed: pip install 'headrace[spark]'")
        found.add(one)
        for requirement in map(Requirement, lines):
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in some or ("",)):
                todo.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def wanted() -> set[str]:
    """What is packed: what our packages import, as far as the extra `spark` has it, with what that asks for itself."""
    declared = needed("headrace", ["spark"]) - {"headrace"}
    return set().union(*(needed(name) for name in imported() & declared))


def files(names: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Name in the archive and file of all that is packed."""
    for name in names:
        for entry in distribution(name).files or ():
            if ".." not in entry.parts and "__pycache__" not in entry.parts:
                yield entry.as_posix(), Path(str(entry.locate()))
    for package in OURS:
        for path in package.rglob("*.py"):
            yield path.relative_to(package.parent).as_posix(), path


def pack(archive: Path, names: Iterable[str]) -> None:
    """The same content makes the same bytes."""
    with (
        archive.open("wb") as out,
        gzip.GzipFile("", "wb", mtime=0, fileobj=out) as zipped,
        tarfile.open(mode="w", fileobj=zipped) as tar,
    ):
        for name, path in sorted(files(names)):
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))


def main(folder: Path) -> None:
    """Writes both files, and says what they are for."""
    folder.mkdir(parents=True, exist_ok=True)
    names = wanted()
    archive, start = folder / "headrace-spark.tar.gz", folder / "headrace-spark.py"
    pack(archive, names)
    start.write_text(MAIN, encoding="utf-8")
    version = ".".join(map(str, sys.version_info[:2]))
    size = f"{archive.stat().st_size / 1e6:.1f} MB"
    print(f"{archive}: {size}, for Python {version}: headrace and {', '.join(sorted(names))}")
    print(f"{start}: for spark-submit, with --archives {archive}#{FOLDER}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
