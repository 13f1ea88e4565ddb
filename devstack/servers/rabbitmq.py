"""RabbitMQ from a Debian suite, unpacked into the cache together with the Erlang that it runs on."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from devstack import apt, ports
from devstack.cache import Cache
from devstack.errors import DevstackError, Unavailable
from devstack.process import clean_environment
from devstack.server import Server
from devstack.servers.base import Kind, Tls

PACKAGES = ("rabbitmq-server",)
# for services, log rotation, helper scripts and plugins that are not used here
WITHOUT = (
    *("erlang-snmp", "erlang-eldap", "erlang-ftp", "erlang-tftp", "libsystemd0", "logrotate", "socat", "python3"),
    *("openssl", "procps", "usrmerge", "init-system-helpers", "lsb-base", "sysvinit-utils"),
)
# What the broker itself needs. It loads the modules of all others at each start, used or not, which takes 3 s more.
PLUGINS = (
    *("amqp10_common", "aten", "credentials_obfuscation", "cuttlefish", "enough", "gen_batch_server", "horus", "jsx"),
    *("khepri", "khepri_mnesia_migration", "observer_cli", "osiris", "ra", "rabbit", "rabbit_common"),
    *("rabbitmq_prelaunch", "ranch", "recon", "redbug", "seshat", "stdout_formatter", "syslog", "sysmon_handler"),
    *("systemd", "thoas"),
)
ERLANG = "usr/lib/erlang"
# programs that Erlang runs itself, by file name and so without the prefix's loader
SPAWNED = ("beam.smp", "erl_child_setup", "inet_gethost")
# by address, so that no name must be resolved
NODE = "rabbit@127.0.0.1"
USER = PASSWORD = "guest"
MEMORY = 1_000_000_000
ALL = ".*"
EVALUATE_SECONDS = 10.0


def erts(root: Path) -> Path:
    """Returns the folder with Erlang's programs."""
    return next(root.joinpath(ERLANG).glob("erts-*")) / "bin"


def home(root: Path) -> Path:
    """Returns the folder with RabbitMQ's own files."""
    return next(root.joinpath("usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))


def relocate(root: Path) -> None:
    """Makes Erlang start its own helpers through the prefix's loader, and drops the plugins that only cost time."""
    machine = apt.architecture()
    libraries = f"$BINDIR/../../../{apt.TRIPLETS[machine]}"
    for name in SPAWNED:
        program = erts(root) / name
        real = program.with_name(f"{name}.real")
        program.rename(real)
        program.write_text(
            f'#!/bin/sh\nexec "{libraries}/{apt.LOADERS[machine]}" --library-path "{libraries}" '
            f'"$BINDIR/{real.name}" "$@"\n'
        )
        program.chmod(0o755)
    for plugin in (home(root) / "plugins").iterdir():
        if plugin.is_dir() and plugin.name.rpartition("-")[0] not in PLUGINS:
            shutil.rmtree(plugin)


def binary(text: str) -> str:
    """Returns a text as a binary in Erlang's source, by its bytes, so that no quoting can go wrong."""
    return f"<<{','.join(str(byte) for byte in text.encode())}>>"


def greets(host: str, port: int) -> bool:
    """Returns whether an AMQP 0-9-1 broker answers the protocol header with a method frame (Connection.Start)."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


class RabbitmqServer(Server):
    """One RabbitMQ node with the account guest/guest. With `tls` it has a second port, for encrypted connections.

    It runs without epmd, Erlang's daemon of node names: the node's own port is fixed and known to its only peer."""

    def __init__(
        self,
        prefix: apt.Prefix,
        name: str,
        directory: Path,
        port: int | None,
        memory_watermark: int,
        tls: Tls | None,
        settings: Mapping[str, str],
    ) -> None:
        super().__init__(name, directory, port)
        self.prefix = prefix
        self.memory_watermark = memory_watermark
        """Bytes above which the memory alarm is raised, as set at the start."""
        self.secure_port = ports.free_port() if tls else 0
        self._node_port = ports.free_port()
        self._cookie = secrets.token_hex(16)
        self._tls = tls
        self._settings = dict(settings)

    @property
    def url(self) -> str:
        """Returns the URL for AMQP clients, for the default virtual host."""
        return self.url_of()

    @property
    def secure_url(self) -> str:
        """Returns the same for encrypted connections."""
        return f"amqps://{USER}:{PASSWORD}@{self.host}:{self.secure_port}/"

    def url_of(self, vhost: str = "/", user: str = USER, password: str = PASSWORD) -> str:
        """Returns the address for another virtual host or account."""
        path = "" if vhost == "/" else quote(vhost, safe="")
        return f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@{self.address}/{path}"

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "url": self.url}

    def settings(self) -> dict[str, str]:
        """Returns the rabbitmq.conf of this node."""
        encrypted = {}
        if self._tls is not None:
            file = str(self._tls.key_and_certificate)
            encrypted = {
                "listeners.ssl.default": f"{self.host}:{self.secure_port}",
                "ssl_options.certfile": file,
                "ssl_options.keyfile": file,
                "ssl_options.cacertfile": str(self._tls.ca or file),
                "ssl_options.verify": "verify_peer" if self._tls.ca else "verify_none",
                "ssl_options.fail_if_no_peer_cert": "true" if self._tls.ca else "false",
            }
        return {
            "listeners.tcp.default": self.address,
            "loopback_users": "none",
            "log.console": "true",
            "log.console.level": "info",
            "vm_memory_high_watermark.absolute": str(self.memory_watermark),
            "disk_free_limit.absolute": "50MB",
            **encrypted,
            **self._settings,
        }

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)
        lines = [f"{key} = {value}" for key, value in self.settings().items()]
        (self.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.directory / "enabled_plugins").write_text("[].\n")

    def environment(self) -> Mapping[str, str]:
        root, own = self.prefix.root, home(self.prefix.root)
        return {
            "ROOTDIR": str(root / ERLANG),
            "BINDIR": str(erts(root)),
            "EMU": "beam",
            "PROGNAME": "erl",
            "HOME": str(self.directory),
            "ERL_LIBS": str(own / "plugins"),
            "ERL_CRASH_DUMP_SECONDS": "0",  # none: after a crash the log says enough
            "RABBITMQ_HOME": str(own),
            "RABBITMQ_PLUGINS_DIR": str(own / "plugins"),
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_MNESIA_BASE": str(self.datadir),
            "RABBITMQ_LOG_BASE": str(self.directory),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
        }

    def _program(self, name: str) -> list[str]:
        return self.prefix.argv(str((erts(self.prefix.root) / name).relative_to(self.prefix.root)))

    def command(self) -> list[str]:
        # two schedulers that don't spin while they wait: the machine is shared with others
        emulator = [*("+W", "w"), *("+S", "2:2"), *("+sbwt", "none"), *("+sbwtdcpu", "none"), *("+sbwtdio", "none")]
        node = ["-name", NODE, "-setcookie", self._cookie, "-start_epmd", "false"]
        node += ["-erl_epmd_port", str(self._node_port), "-kernel", "inet_dist_use_interface", "{127,0,0,1}"]
        quiet = ["-syslog", "logger", "[]", "-syslog", "syslog_error_logger", "false"]
        # Erlang's own monitoring of the machine, whose programs would run without the prefix's loader
        quiet += [word for name in ("cpu_sup", "disksup", "memsup") for word in ("-os_mon", f"start_{name}", "false")]
        return [*self._program("erlexec"), *("-noinput", "-boot", "start_sasl", "-s", "rabbit", "boot"), *emulator,
                *node, *quiet]  # fmt: skip

    def is_ready(self) -> bool:
        return "Server startup complete" in self.log_since_start() and greets(self.host, self.port)

    def evaluate(self, expression: str) -> str:
        """Returns the value of an Erlang expression in the node, as Erlang prints it; takes a few milliseconds.

        rabbitmqctl can do no more than that, and starts a virtual machine of its own for it."""
        command = [*self._program("erl_call"), "-address", f"{self.host}:{self._node_port}", "-c", self._cookie, "-e"]
        deadline = time.monotonic() + EVALUATE_SECONDS
        while True:
            try:
                done = subprocess.run(
                    command,
                    input=f"{expression}.\n",
                    capture_output=True,
                    text=True,
                    env=clean_environment(),
                    timeout=EVALUATE_SECONDS,
                )
            except subprocess.TimeoutExpired as error:
                raise DevstackError(f"{self.name} did not answer within {EVALUATE_SECONDS:.0f} s.") from error
            # erl_call has a short time limit of its own, which it exceeds on a busy machine.
            if "failed to connect" not in done.stdout + done.stderr or time.monotonic() > deadline:
                break
        if not done.stdout.startswith("{ok, "):
            raise DevstackError(f"{self.name} could not evaluate {expression}: {(done.stdout or done.stderr)[:500]}")
        return done.stdout.strip().removeprefix("{ok, ").removesuffix("}")

    def sync(self) -> None:
        """Writes new queues and the names of new quorum queues to disk, as RabbitMQ does after a delay: if it is killed
        sooner, the queue is lost or empty, with all confirmed messages."""
        self.evaluate("begin [ok = dets:sync(Table) || Table <- dets:all()], catch mnesia:sync_log() end")

    def _order(self, expression: str) -> None:
        if (answer := self.evaluate(expression)) != "ok":
            raise DevstackError(f"{self.name} refused {expression}: {answer[:500]}")

    def add_vhost(self, vhost: str) -> None:
        """Creates a virtual host and lets guest use it; an existing one is not changed."""
        self._order(f'rabbit_vhost:add({binary(vhost)}, <<"devstack">>)')
        self.allow(USER, vhost)

    def add_user(self, user: str, password: str, vhost: str = "/") -> None:
        """Creates an account that may do everything in one virtual host."""
        self._order(f'rabbit_auth_backend_internal:add_user({binary(user)}, {binary(password)}, <<"devstack">>)')
        self.allow(user, vhost)

    def allow(self, user: str, vhost: str, configure: str = ALL, write: str = ALL, read: str = ALL) -> None:
        """Sets what an account may do in a virtual host: regular expressions over the names of exchanges and queues."""
        words = ", ".join(binary(text) for text in (user, vhost, configure, write, read))
        self._order(f'rabbit_auth_backend_internal:set_permissions({words}, <<"devstack">>)')

    def allow_topics(self, user: str, vhost: str, exchange: str, write: str, read: str = ALL) -> None:
        """Sets which routing keys an account may use at a topic exchange: regular expressions."""
        words = ", ".join(binary(text) for text in (user, vhost, exchange, write, read))
        self._order(f'rabbit_auth_backend_internal:set_topic_permissions({words}, <<"devstack">>)')

    def set_memory_watermark(self, size: int) -> None:
        """Raises the memory alarm above this many bytes, until the next start."""
        self._order(f"vm_memory_monitor:set_vm_memory_high_watermark({{absolute, {size}}})")

    def raise_memory_alarm(self) -> None:
        """Blocks every connection that publishes; each has been notified of the alarm when this returns."""
        self.set_memory_watermark(1)
        deadline = time.monotonic() + EVALUATE_SECONDS
        while "running" in (states := self.evaluate("rabbit_networking:connection_info_all([state])")):
            if time.monotonic() > deadline:
                raise DevstackError(f"{self.name}: the memory alarm did not reach each connection: {states[:500]}")

    def end_memory_alarm(self) -> None:
        """Accepts publishers again."""
        self.set_memory_watermark(self.memory_watermark)

    def has_alarm(self) -> bool:
        """Returns whether the memory or the disk alarm is raised."""
        return self.evaluate("rabbit_alarm:get_alarms()") != "[]"


class Rabbitmq(Kind):
    """RabbitMQ in the version of a Debian suite."""

    def __init__(self, name: str, version: str, suite: str) -> None:
        self.name, self.version, self._suite = name, version, suite

    def _prefix(self, cache: Cache) -> apt.Prefix:
        probe = f"{ERLANG}/erts-*/bin/{SPAWNED[0]}.real"
        try:
            return apt.install(cache, self.name, self._suite, PACKAGES, (), probe, WITHOUT, relocate)
        except Unavailable as error:
            raise Unavailable(f"RabbitMQ {self.version} can't be had on this machine: {error}") from error

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> RabbitmqServer:
        return self.server(cache, name, directory, port)

    def server(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        memory_watermark: int = MEMORY,
        tls: Tls | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> RabbitmqServer:
        """Returns a handle for a node; `memory_watermark` in bytes, `settings` override those of rabbitmq.conf."""
        return RabbitmqServer(self._prefix(cache), name, directory, port, memory_watermark, tls, settings or {})
