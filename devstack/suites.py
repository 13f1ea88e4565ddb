"""The test suites of MySQL and MariaDB as packaged by Debian: SQL, and binlog files that old versions wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

from devstack import apt
from devstack.cache import Cache
from devstack.progress import say


def _installed(cache: Cache, name: str, suite: str, packages: tuple[str, ...], folder: str) -> Path:
    """Returns a folder of the packages, unpacked once. Raises Unavailable."""
    machine = apt.architecture()

    def build(fresh: Path) -> None:
        say(f"downloading {name} (Debian {suite}) ...")
        apt.unpack(apt.download(fresh / "apt", name, suite, machine, packages, alone=True), fresh / "root")
        (fresh / "root" / folder).rename(fresh / "tests")
        shutil.rmtree(fresh / "apt")
        shutil.rmtree(fresh / "root")

    return cache.install(name, f"{suite} {machine} {' '.join(packages)} 1", build) / "tests"


def mysql(cache: Cache) -> Path:
    """Returns Oracle's tests: `.test` files in `t` and `suite`, data in `std_data`. Raises Unavailable."""
    return _installed(cache, "mysql-tests", "sid", ("mysql-testsuite",), "usr/lib/mysql-test")


def mariadb(cache: Cache) -> Path:
    """Returns MariaDB's tests: `.test` files in `main` and `suite`, data in `std_data`. Raises Unavailable."""
    packages = ("mariadb-test", "mariadb-test-data")
    return _installed(cache, "mariadb-tests", "bookworm", packages, "usr/share/mysql/mysql-test")


def mariadb_binlog(cache: Cache) -> Path:
    """Returns the program mariadb-binlog, which runs with the libraries of the server's prefix. Raises Unavailable."""
    return _installed(cache, "mariadb-binlog", "bookworm", ("mariadb-client",), "usr/bin") / "mariadb-binlog"
