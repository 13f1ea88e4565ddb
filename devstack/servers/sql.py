"""Shared by MySQL and MariaDB: options, accounts, client, pristine data directory, and handshake."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from devstack.apt import Prefix
from devstack.cache import STAMP, Cache
from devstack.errors import DevstackError, StartFailed
from devstack.process import clean_environment
from devstack.progress import say
from devstack.server import Server
from devstack.servers.base import Kind

ROOT_PASSWORD = "root"
USER = "canal"
PASSWORD = "canal"


def run_as() -> list[str]:
    """Returns the option to run as root, which both servers refuse unless it names the user."""
    return ["--user=root"] if os.geteuid() == 0 else []


def own_tmpdir(directory: Path) -> str:
    """Returns an option for a separate folder of temporary files. At its start a server removes files in a shared one
    that look like leftovers, which crashes another server that has them open."""
    folder = directory / "tmp"
    folder.mkdir(exist_ok=True)
    return f"--tmpdir={folder}"


def copy_tree(source: Path, target: Path) -> None:
    """Copies a data directory, sharing blocks if the file system can. Zeros, which are most of it, are not written."""
    done = subprocess.run(
        ["cp", "-a", "--reflink=auto", "--sparse=always", str(source), str(target)], capture_output=True
    )
    if done.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)


def run_step(command: Sequence[str], log: Path, stdin: str = "") -> None:
    """Runs a step of the initialization; shows the end of its log if it fails."""
    with open(log, "ab") as output:
        done = subprocess.run(
            command, input=stdin.encode(), stdout=output, stderr=output, cwd=log.parent, env=clean_environment()
        )
    if done.returncode != 0:
        for line in log.read_text(errors="replace").splitlines()[-20:]:
            say(line)
        raise StartFailed("a new data directory could not be initialised; the end of the log is above.")


def pristine(cache: Cache, name: str, recipe: str, initialise: Callable[[Path], None]) -> Path:
    """Returns a data directory that is initialized once and then copied for each instance: that saves several
    seconds."""
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]

    def build(fresh: Path) -> None:
        say(f"preparing a data directory for {name} ...")
        initialise(fresh / "data")
        # each copy must get its own server_uuid
        (fresh / "data" / "auto.cnf").unlink(missing_ok=True)

    return cache.install(f"{name}-data", digest, build) / "data"


class SqlServer(Server):
    """A MySQL or MariaDB server with the accounts root/root and canal/canal, reachable over TCP on loopback."""

    root_password = ROOT_PASSWORD
    user = USER
    password = PASSWORD
    stop_seconds = 60.0
    own_options: ClassVar[Sequence[str]]
    """The options of this kind of server in addition to those of every kind."""

    def __init__(
        self,
        prefix: Prefix,
        template: Path,
        name: str,
        directory: Path,
        port: int | None,
        server_id: int,
        extra_args: Sequence[str],
    ) -> None:
        super().__init__(name, directory, port)
        self.prefix = prefix
        self.server_id = server_id
        self.extra_args = list(extra_args)
        self._template = template

    def prepare(self) -> None:
        copy_tree(self._template, self.datadir)
        own_tmpdir(self.directory)

    @staticmethod
    @abstractmethod
    def program(prefix: Prefix) -> list[str]:
        """Returns the beginning of the server's command line: where its own files are."""

    def command(self) -> list[str]:
        return [
            *self.program(self.prefix),
            f"--datadir={self.datadir}",
            f"--bind-address={self.host}",
            f"--port={self.port}",
            # relative to the data directory: a whole path may be too long for a unix socket
            "--socket=mysqld.sock",
            f"--pid-file={self.directory}/mysqld.pid",
            own_tmpdir(self.directory),
            "--skip-name-resolve",
            f"--server-id={self.server_id}",
            f"--report-host={self.host}",
            f"--report-port={self.port}",
            "--log-bin=mysql-bin",
            "--binlog-row-image=FULL",
            "--innodb-buffer-pool-size=128M",
            "--local-infile=ON",
            *self.own_options,
            *self.extra_args,
        ]

    @property
    @abstractmethod
    def client_program(self) -> list[str]:
        """Returns the command line client, without connection options."""

    @property
    def client_args(self) -> list[str]:
        """Returns a whole command line of the SQL client as root; append options, or send SQL to stdin."""
        return [*self.client_program, *self._login()]

    def _login(self) -> list[str]:
        return [
            "--no-defaults", "--protocol=tcp", f"--host={self.host}", f"--port={self.port}", "--user=root",
            f"--password={self.root_password}", "--default-character-set=utf8mb4",
        ]  # fmt: skip

    def sql(self, statements: str, database: str | None = None) -> list[tuple[str, ...]]:
        """Runs statements as root through the server's own client; returns the rows as text, a NULL as the text
        NULL."""
        command = [*self.client_args, "--batch", "--skip-column-names", *([database] if database else [])]
        done = subprocess.run(command, input=statements.encode(), capture_output=True, env=clean_environment())
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").splitlines()
            errors = [line for line in lines if line.startswith("ERROR")]
            raise DevstackError(f"{self.name}: {' '.join(errors or lines)}")
        return [tuple(line.split("\t")) for line in done.stdout.decode().splitlines()]

    def connection(self, user: str = USER) -> dict[str, object]:
        """Returns keyword arguments for pymysql or aiomysql."""
        password = self.root_password if user == "root" else self.password
        return {"host": self.host, "port": self.port, "user": user, "password": password}

    def endpoint(self) -> dict[str, object]:
        return {**self.connection(), "root_password": self.root_password}

    def is_ready(self) -> bool:
        if "ready for connections" not in self.log_since_start():
            return False
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                greeting = connection.recv(5)
        except OSError:
            return False
        # three bytes of length, a sequence number, and protocol version 10
        return len(greeting) == 5 and greeting[3:] == b"\x00\x0a"


S = TypeVar("S", bound=SqlServer, covariant=True)


class SqlKind(Kind, Generic[S]):
    """A kind of SQL server, by its packages and how its data directory is made."""

    maker: type[S]
    """The class of its handles."""
    accounts: ClassVar[str]
    """Statements that create the accounts in a new data directory."""

    @abstractmethod
    def prefix(self, cache: Cache) -> Prefix:
        """Returns its programs, installed if necessary."""

    @abstractmethod
    def initialise(self, prefix: Prefix, data: Path) -> None:
        """Creates a data directory with the accounts in it."""

    def _template(self, cache: Cache, prefix: Prefix) -> Path:
        stamp = (prefix.root.parent / STAMP).stat().st_mtime_ns
        return pristine(cache, self.name, f"{stamp} {self.accounts}", lambda data: self.initialise(prefix, data))

    def install(self, cache: Cache) -> None:
        self._template(cache, self.prefix(cache))

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> S:
        return self.server(cache, name, directory, port)

    def server(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        server_id: int = 1,
        extra_args: Sequence[str] = (),
    ) -> S:
        """Returns a handle for a server with these options; later ones override the defaults."""
        prefix = self.prefix(cache)
        return self.maker(prefix, self._template(cache, prefix), name, directory, port, server_id, extra_args)
