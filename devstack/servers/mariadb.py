"""MariaDB 10.11 from Debian bookworm, unpacked into the cache with its own libc."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from devstack import apt
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.servers.base import Kind
from devstack.servers.sql import PASSWORD, ROOT_PASSWORD, USER, SqlServer, own_tmpdir, pristine, run_as, run_step

SUITE = "bookworm"
PACKAGES = ("mariadb-server-core", "mariadb-client-core")
PROGRAM = "usr/sbin/mariadbd"
# what mariadb-install-db feeds to the server, in its order
SYSTEM_TABLES = (
    "mysql_system_tables.sql",
    "mysql_performance_tables.sql",
    "mysql_system_tables_data.sql",
    "fill_help_tables.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "mysql_sys_schema.sql",
)
# first without the root accounts by address that the system tables come with: they have no password and match first
ACCOUNTS = f"""
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


def mariadbd(prefix: apt.Prefix) -> list[str]:
    """The beginning of a mariadbd command line: where its own files are."""
    usr = prefix.root / "usr"
    return [
        *prefix.argv(PROGRAM),
        "--no-defaults",
        f"--basedir={usr}",
        f"--lc-messages-dir={usr}/share/mysql",
        f"--character-sets-dir={usr}/share/mysql/charsets",
        f"--plugin-dir={usr}/lib/mysql/plugin",
        *run_as(),
    ]


class MariadbServer(SqlServer):
    """A MariaDB server that writes a full row binlog; its GTIDs are always on."""

    @property
    def client_program(self) -> list[str]:
        return self.prefix.argv("usr/bin/mariadb")

    def command(self) -> list[str]:
        return [
            *mariadbd(self.prefix),
            f"--datadir={self.datadir}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            # relative to the data directory: a whole path may be too long for a unix socket
            "--socket=mysqld.sock",
            f"--pid-file={self.directory}/mysqld.pid",
            own_tmpdir(self.directory),
            "--skip-name-resolve",
            f"--server-id={self.server_id}",
            "--gtid-domain-id=0",
            f"--report-host={self.host}",
            f"--report-port={self.port}",
            "--log-bin=mysql-bin",
            "--binlog-format=ROW",
            "--binlog-row-image=FULL",
            "--binlog-row-metadata=FULL",
            "--binlog-annotate-row-events=ON",
            "--innodb-buffer-pool-size=128M",
            "--innodb-log-file-size=64M",
            "--local-infile=ON",
            *self.extra_args,
        ]


class Mariadb(Kind):
    """MariaDB."""

    name = "mariadb"
    version = "10.11"

    def _prefix(self, cache: Cache) -> apt.Prefix:
        try:
            return apt.install(cache, self.name, SUITE, PACKAGES, (), PROGRAM)
        except Unavailable as error:
            raise Unavailable(f"MariaDB can't be had on this machine: {error}") from error

    def _template(self, cache: Cache, prefix: apt.Prefix) -> Path:
        share = prefix.root / "usr" / "share" / "mysql"

        def initialise(data: Path) -> None:
            data.mkdir()
            files = "\n".join((share / name).read_text() for name in SYSTEM_TABLES)
            tables = (
                f"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\nSET @skip_auth_anonymous=1;\n{files}"
            )
            options = [
                f"--datadir={data}",
                own_tmpdir(data.parent),
                "--bootstrap",
                "--innodb-log-file-size=64M",
                "--skip-log-bin",
            ]
            for statements in (tables, ACCOUNTS):
                run_step([*mariadbd(prefix), *options], data.with_name("log"), statements)

        stamp = (prefix.root.parent / ".devstack-stamp.json").stat().st_mtime_ns
        return pristine(cache, self.name, f"{stamp} {ACCOUNTS}", initialise)

    def install(self, cache: Cache) -> None:
        self._template(cache, self._prefix(cache))

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> MariadbServer:
        return self.server(cache, name, directory, port)

    def server(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        server_id: int = 1,
        extra_args: Sequence[str] = (),
    ) -> MariadbServer:
        """A handle for a server with these options; later ones override the defaults."""
        prefix = self._prefix(cache)
        return MariadbServer(prefix, self._template(cache, prefix), name, directory, port, server_id, extra_args)
