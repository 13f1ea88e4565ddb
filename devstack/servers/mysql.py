"""MySQL from Debian's unstable suite, unpacked into the cache with its own libc."""

from __future__ import annotations

from pathlib import Path

from devstack import apt
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.servers.sql import PASSWORD, ROOT_PASSWORD, USER, SqlKind, SqlServer, own_tmpdir, run_as, run_step

SUITE = "sid"
PACKAGES = ("mysql-server-core", "mysql-client-core")
PROGRAM = "usr/sbin/mysqld"
MYSQLDUMP = "usr/bin/mysqldump"


class MysqlServer(SqlServer):
    """A MySQL server that writes a full row binlog with GTIDs."""

    own_options = (
        "--mysqlx=OFF",
        # No test runs events, and the scheduler takes CPU even without any.
        "--event-scheduler=OFF",
        "--binlog-row-metadata=FULL",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        # Without a sync, commits still survive a kill of the process, and tests do nothing worse.
        "--sync-binlog=0",
        "--innodb-flush-log-at-trx-commit=2",
        "--innodb-redo-log-capacity=64M",
        "--secure-file-priv=",
    )

    @staticmethod
    def program(prefix: apt.Prefix) -> list[str]:
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

    @property
    def client_program(self) -> list[str]:
        return self.prefix.argv("usr/bin/mysql")

    @property
    def mysqlbinlog_args(self) -> list[str]:
        """Returns a whole command line of mysqlbinlog as root; append options and file names."""
        return [*self.prefix.argv("usr/bin/mysqlbinlog"), *self._login()]

    @property
    def mysqldump_args(self) -> list[str]:
        """Returns a whole command line of mysqldump as root; append options, a schema and tables. Raises Unavailable if
        the packages have none."""
        if not (self.prefix.root / MYSQLDUMP).is_file():
            raise Unavailable("mysqldump: not found")
        return [*self.prefix.argv(MYSQLDUMP), *self._login()]


class Mysql(SqlKind[MysqlServer]):
    """Oracle's MySQL server."""

    name = "mysql"
    version = "9.7"
    maker = MysqlServer
    accounts = f"""
ALTER USER root@localhost IDENTIFIED BY '{ROOT_PASSWORD}';
CREATE USER root@'%' IDENTIFIED BY '{ROOT_PASSWORD}';
GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;
CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';
GRANT SELECT, RELOAD, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {USER}@'%';
GRANT BINLOG_ADMIN ON *.* TO {USER}@'%';
GRANT ALL ON headrace.* TO {USER}@'%';
"""

    def prefix(self, cache: Cache) -> apt.Prefix:
        private = ("usr/lib/mysql/private", "usr/lib/mysql")
        try:
            return apt.install(cache, self.name, SUITE, PACKAGES, private, PROGRAM)
        except Unavailable as error:
            raise Unavailable(f"MySQL can't be had on this machine: {error}") from error

    def initialise(self, prefix: apt.Prefix, data: Path) -> None:
        init = data.with_name("accounts.sql")
        init.write_text(self.accounts.lstrip())
        options = [
            "--initialize-insecure",
            f"--init-file={init}",
            "--skip-log-bin",
            own_tmpdir(data.parent),
            "--innodb-redo-log-capacity=64M",
        ]
        run_step([*MysqlServer.program(prefix), f"--datadir={data}", *options], data.with_name("log"))
