"""libfaketime from this machine's own packages: a daemon whose wall clock can jump while it runs."""

from __future__ import annotations

import functools
import platform
import subprocess
from pathlib import Path

from devstack.cache import Cache

RECIPE = "libfaketime 1"


@functools.cache
def faketime_library() -> Path | None:
    """The library to preload, downloaded into the cache once; None where it is not to be had. It has to
    fit the system's own C library, because it is loaded into the system's Python."""
    try:
        prefix = Cache().install("faketime", f"{RECIPE} {platform.libc_ver()}", _build)
    except (OSError, subprocess.CalledProcessError):
        return None
    return next(iter(sorted(prefix.rglob("libfaketimeMT.so.1"))), None)


def _build(fresh: Path) -> None:
    command = ["apt-get", "-q=2", "-o", "APT::Sandbox::User=root", "download", "libfaketime"]
    subprocess.run(command, cwd=fresh, check=True, capture_output=True)
    (package,) = fresh.glob("libfaketime_*.deb")
    subprocess.run(["dpkg-deb", "-x", package.name, "."], cwd=fresh, check=True, capture_output=True)
    package.unlink()


class Clock:
    """The wall clock of one process, moved against the real one; its monotonic clock stays as it is."""

    def __init__(self, file: Path, library: Path | None) -> None:
        self._file, self._library = file, library
        self.offset = 0.0
        self.set(0.0)

    @property
    def can_jump(self) -> bool:
        return self._library is not None

    @property
    def prefix(self) -> list[str]:
        """The beginning of the process's command line."""
        if self._library is None:
            return []
        return [
            "/usr/bin/env",
            f"LD_PRELOAD={self._library}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_CACHE_DURATION=1",
            "DONT_FAKE_MONOTONIC=1",
        ]

    def set(self, offset: float) -> None:
        """So many seconds ahead of the real clock; the process sees it within a second."""
        self.offset = offset
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:+.3f}\n")
        new.rename(self._file)
