"""MariaDB from a suite of Debian, unpacked into the cache with its own libc."""

from __future__ import annotations

from pathlib import Path

from devstack import apt
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.servers.sql import PASSWORD, ROOT_PASSWORD, USER, SqlKind, SqlServer, own_tmpdir, run_as, run_step

PACKAGES = ("mariadb-server-core", "mariadb-client-core")
PROGRAM = "usr/sbin/mariadbd"
# what mariadb-install-db sends to the server, in order; MariaDB 11 calls those with mysql_ mariadb_
SYSTEM_TABLES = (
    "mysql_system_tables.sql",
    "mysql_performance_tables.sql",
    "mysql_system_tables_data.sql",
    "fill_help_tables.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "mysql_sys_schema.sql",
)


def share(prefix: apt.Prefix) -> Path:
    """Returns the folder with the server's messages, character sets and system tables; in MariaDB 11 it is another
    one."""
    old = prefix.root / "usr/share/mysql"
    return old if old.is_dir() else old.with_name("mariadb")


class MariadbServer(SqlServer):
    """A MariaDB server that writes a full row binlog; its GTIDs are always on."""

    own_options = (
        "--gtid-domain-id=0",
        "--binlog-format=ROW",
        "--binlog-row-metadata=FULL",
        "--binlog-annotate-row-events=ON",
        "--innodb-log-file-size=64M",
    )

    @staticmethod
    def program(prefix: apt.Prefix) -> list[str]:
        usr = prefix.root / "usr"
        return [
            *prefix.argv(PROGRAM),
            "--no-defaults",
            f"--basedir={usr}",
            f"--lc-messages-dir={share(prefix)}",
            f"--character-sets-dir={share(prefix)}/charsets",
            f"--plugin-dir={usr}/lib/mysql/plugin",
            *run_as(),
        ]

    @property
    def client_program(self) -> list[str]:
        return self.prefix.argv("usr/bin/mariadb")


class Mariadb(SqlKind[MariadbServer]):
    """MariaDB in the version of a Debian suite."""

    maker = MariadbServer
    # first without the root accounts by address in the system tables: they have no password and match first
    accounts = f"""
DELETE FROM mysql.global_priv WHERE User IN ('root', '') AND Host <> 'localhost';
FLUSH PRIVILEGES;
CREATE OR REPLACE USER root@localhost IDENTIFIED BY '{ROOT_PASSWORD}';
GRANT ALL ON *.* TO root@localhost WITH GRANT OPTION;
CREATE OR REPLACE USER root@'%' IDENTIFIED BY '{ROOT_PASSWORD}';
GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;
CREATE OR REPLACE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';
GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION MASTER ADMIN, BINLOG MONITOR, BINLOG ADMIN ON *.* TO {USER}@'%';
GRANT SLAVE MONITOR ON *.* TO {USER}@'%';
GRANT ALL ON headrace.* TO {USER}@'%';
"""

    def __init__(self, name: str, version: str, suite: str) -> None:
        self.name, self.version, self._suite = name, version, suite

    def prefix(self, cache: Cache) -> apt.Prefix:
        try:
            return apt.install(cache, self.name, self._suite, PACKAGES, (), PROGRAM)
        except Unavailable as error:
            raise Unavailable(f"MariaDB {self.version} can't be had on this machine: {error}") from error

    def initialise(self, prefix: apt.Prefix, data: Path) -> None:
        data.mkdir()
        folder = share(prefix)
        files = [folder / name.replace("mysql", folder.name) for name in SYSTEM_TABLES]
        text = "\n".join(file.read_text() for file in files)
        tables = f"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n{text}"
        options = [
            f"--datadir={data}",
            own_tmpdir(data.parent),
            "--bootstrap",
            "--innodb-log-file-size=64M",
            "--skip-log-bin",
        ]
        for statements in (tables, self.accounts):
            run_step([*MariadbServer.program(prefix), *options], data.with_name("log"), statements)
