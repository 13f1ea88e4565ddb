"""The cache folder: installed prefixes with stamps, file locks, and run directories that are removed after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

STAMP = ".devstack-stamp.json"
KEEP = ".keep"


def default_root() -> Path:
    """Returns the git-ignored folder next to this package, unless DEVSTACK_CACHE names another."""
    chosen = os.environ.get("DEVSTACK_CACHE")
    return Path(chosen).absolute() if chosen else Path(__file__).resolve().parent.parent / ".cache"


class Cache:
    """The root folder of everything that devstack downloads, unpacks or writes."""

    def __init__(self, root: str | os.PathLike[str] | None = None, *, lasting: bool = False) -> None:
        self.root = Path(root).absolute() if root is not None else default_root()
        self.lasting = lasting
        """Whether servers must be as fast as possible in the long run, rather than start fast; see java_command."""

    def folder(self, *parts: str) -> Path:
        """Returns a folder below the root; creates it if it is missing."""
        path = self.root.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds a lock against other processes and threads; the kernel frees it when the holder dies."""
        with open(self.folder("locks") / f"{name}.lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def installed(self, name: str, recipe: str) -> Path | None:
        """Returns the finished folder that was built from exactly this recipe, or None."""
        prefix = self.root / "opt" / name
        try:
            stamp = json.loads((prefix / STAMP).read_text())
        except (OSError, ValueError):
            return None
        return prefix if stamp.get("recipe") == recipe else None

    def install(self, name: str, recipe: str, build: Callable[[Path], None]) -> Path:
        """Returns the folder `name`, built once: unfinished folders never get their stamp or their final name."""
        if done := self.installed(name, recipe):
            return done
        with self.lock(name):
            if done := self.installed(name, recipe):
                return done
            target = self.folder("opt") / name
            for leftover in target.parent.glob(f"{name}.new-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            fresh = Path(tempfile.mkdtemp(prefix=f"{name}.new-", dir=target.parent))
            try:
                fresh.chmod(0o755)
                build(fresh)
                (fresh / STAMP).write_text(json.dumps({"recipe": recipe}) + "\n")
                if target.exists():
                    shutil.rmtree(target)
                fresh.rename(target)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
            return target


class RunDir:
    """The data and logs of one stack; a lock in it distinguishes running stacks from dead ones."""

    def __init__(self, cache: Cache, keep: bool) -> None:
        self.keep = keep
        base = cache.folder("run")
        with cache.lock("run"):
            sweep(base)
            # short, because unix socket paths end at 107 characters
            self.path = base / f"{os.getpid()}-{secrets.token_hex(3)}"
            self.path.mkdir()
            self._lock: IO[str] = open(self.path / ".lock", "w")  # noqa: SIM115 - held as long as the stack lives
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        if keep:
            (self.path / KEEP).touch()

    def close(self) -> None:
        """Removes the directory unless it is to be kept."""
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def sweep(base: Path) -> None:
    """Removes the run directories of killed stacks."""
    for path in base.iterdir():
        if (path / KEEP).exists():
            continue
        try:
            handle = open(path / ".lock", "a")  # noqa: SIM115 - closed below
        except OSError:
            continue
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(path, ignore_errors=True)
