"""MySQL from Debian's unstable suite, unpacked into the cache with its own libc."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from devstack import apt
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.servers.base import Kind
from devstack.servers.sql import PASSWORD, ROOT_PASSWORD, USER, SqlServer, own_tmpdir, pristine, run_as, run_step

SUITE = "sid"
PACKAGES = ("mysql-server-core", "mysql-client-core")
PROGRAM = "usr/sbin/mysqld"
ACCOUNTS = f"""
ALTER USER root@localhost IDENTIFIED BY '{ROOT_PASSWORD}';
CREATE USER root@'%' IDENTIFIED BY '{ROOT_PASSWORD}';
GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;
CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';
GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {USER}@'%';
GRANT BINLOG_ADMIN ON *.* TO {USER}@'%';
GRANT ALL ON headrace.* TO {USER}@'%';
"""


def mysqld(prefix: apt.Prefix) -> list[str]:
    """The beginning of a mysqld command line: where its own files are."""
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


class MysqlServer(SqlServer):
    """A MySQL server that writes a full row binlog with GTIDs."""

    @property
    def client_program(self) -> list[str]:
        return self.prefix.argv("usr/bin/mysql")

    @property
    def mysqlbinlog_args(self) -> list[str]:
        """A whole command line of mysqlbinlog as root; append options and file names."""
        return [*self.prefix.argv("usr/bin/mysqlbinlog"), *self._login()]

    def command(self) -> list[str]:
        return [
            *mysqld(self.prefix),
            f"--datadir={self.datadir}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            # relative to the data directory: a whole path may be too long for a unix socket
            "--socket=mysqld.sock",
            f"--pid-file={self.directory}/mysqld.pid",
            own_tmpdir(self.directory),
            "--mysqlx=OFF",
            "--skip-name-resolve",
            f"--server-id={self.server_id}",
            f"--report-host={self.host}",
            f"--report-port={self.port}",
            "--log-bin=mysql-bin",
            "--binlog-row-image=FULL",
            "--binlog-row-metadata=FULL",
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--innodb-buffer-pool-size=128M",
            "--innodb-redo-log-capacity=64M",
            "--secure-file-priv=",
            "--local-infile=ON",
            *self.extra_args,
        ]


class Mysql(Kind):
    """Oracle's MySQL server."""

    name = "mysql"
    version = "9.7"

    def _prefix(self, cache: Cache) -> apt.Prefix:
        private = ("usr/lib/mysql/private", "usr/lib/mysql")
        try:
            return apt.install(cache, self.name, SUITE, PACKAGES, private, PROGRAM)
        except Unavailable as error:
            raise Unavailable(f"MySQL can't be had on this machine: {error}") from error

    def _template(self, cache: Cache, prefix: apt.Prefix) -> Path:
        def initialise(data: Path) -> None:
            init = data.with_name("accounts.sql")
            init.write_text("\n".join(line for line in ACCOUNTS.splitlines() if line) + "\n")
            options = [
                "--initialize-insecure",
                f"--init-file={init}",
                "--skip-log-bin",
                own_tmpdir(data.parent),
                "--innodb-redo-log-capacity=64M",
            ]
            run_step([*mysqld(prefix), f"--datadir={data}", *options], data.with_name("log"))

        stamp = (prefix.root.parent / ".devstack-stamp.json").stat().st_mtime_ns
        return pristine(cache, self.name, f"{stamp} {ACCOUNTS}", initialise)

    def install(self, cache: Cache) -> None:
        self._template(cache, self._prefix(cache))

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> MysqlServer:
        return self.server(cache, name, directory, port)

    def server(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        server_id: int = 1,
        extra_args: Sequence[str] = (),
    ) -> MysqlServer:
        """A handle for a server with these options; later ones override the defaults."""
        prefix = self._prefix(cache)
        return MysqlServer(prefix, self._template(cache, prefix), name, directory, port, server_id, extra_args)
