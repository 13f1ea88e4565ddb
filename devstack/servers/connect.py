"""Kafka Connect: one distributed worker, with Debezium's connectors as plugins."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devstack.cache import Cache
from devstack.errors import BadRequest, StartFailed
from devstack.server import POLL_SECONDS, Server
from devstack.servers.jvm import install_jars, java_command
from devstack.servers.kafka import KafkaCluster
from devstack.servers.sql import SqlServer

VERSION = "4.3.0"
COORDINATES = (f"org.apache.kafka:connect-runtime:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
PLUGINS = {
    "mysql": "io.debezium:debezium-connector-mysql:3.6.1.Final",
    # The newest versions that Maven's repository has with all dependencies.
    "mariadb": "io.debezium:debezium-connector-mariadb:3.5.0.Final",
    "jdbc": "io.debezium:debezium-connector-jdbc:3.5.0.Final",
}
"""Connectors by the name of what they read or, for jdbc, write."""
MYSQL_CONNECTOR = "io.debezium.connector.mysql.MySqlConnector"
MARIADB_CONNECTOR = "io.debezium.connector.mariadb.MariaDbConnector"
JDBC_SINK = "io.debezium.connector.jdbc.JdbcSinkConnector"

_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_NOT_YET = 404
"""The worker's answer to every request before it has read its paths."""
_BUSY = 409
"""The worker's answer while its group rebalances the connectors."""


def _without_jackson(prefix: Path) -> None:
    """Removes Jackson, as in Debezium's own archives: the worker's Jackson has modules that fit no other copy of it."""
    for jar in (prefix / "lib").glob("jackson-*.jar"):
        jar.unlink()


def _runs(status: dict[str, Any]) -> bool:
    parts = [status["connector"], *status["tasks"]]
    for part in parts:
        if part["state"] == "FAILED":
            raise StartFailed(f"{status['name']} has failed: {part.get('trace', '')[:2000]}")
    return len(parts) > 1 and all(part["state"] == "RUNNING" for part in parts)


class Refused(BadRequest):
    """A request that the worker refuses, with the HTTP status of its answer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class ConnectWorker(Server):
    """One worker in its own group. Connectors, their offsets and states are in topics of the cluster, so they survive a
    restart and a crash."""

    def __init__(
        self,
        cache: Cache,
        prefixes: Sequence[Path],
        name: str,
        directory: Path,
        port: int | None,
        bootstrap_servers: str,
    ) -> None:
        super().__init__(name, directory, port)
        self._cache = cache
        self._prefix, *self._plugins = prefixes
        self._bootstrap_servers = bootstrap_servers
        self._began_at: dict[str, int] = {}
        """By connector, the size of the log when it was last configured or resumed."""
        self.group = name

    @property
    def url(self) -> str:
        """Returns its HTTP address."""
        return f"http://{self.address}"

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "url": self.url}

    def settings(self) -> dict[str, str]:
        """Returns the worker's properties."""
        topics = {
            f"{what}.storage.{key}": value
            for what in ("offset", "config", "status")
            for key, value in (("topic", f"{self.group}-{what}s"), ("replication.factor", "1"))
        }
        return {
            "bootstrap.servers": self._bootstrap_servers,
            "group.id": self.group,
            "listeners": self.url,
            "rest.advertised.host.name": self.host,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "plugin.path": ",".join(str(prefix) for prefix in self._plugins),
            # Reads the jars' declarations, instead of each class of each jar.
            "plugin.discovery": "service_load",
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "offset.flush.interval.ms": "500",
            # For the membership of a crashed worker in its group; Kafka allows no less.
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            # How long the connectors of a crashed worker stay unassigned; the default is 5 minutes.
            "scheduled.rebalance.max.delay.ms": "0",
            **topics,
        }

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)
        lines = [f"{key}={value}" for key, value in self.settings().items()]
        (self.directory / "connect.properties").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        options = [
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
            f"-Djava.io.tmpdir={self.datadir}",
        ]
        main = ["org.apache.kafka.connect.cli.ConnectDistributed", str(self.directory / "connect.properties")]
        return [*java_command(self._cache, "512m", *options), "-cp", f"{self._prefix}/lib/*", *main]

    def is_ready(self) -> bool:
        try:
            # Answered when the worker has read its topics and is a member of its group.
            return "Finished starting connectors and tasks" in self.log_since_start() and self.connectors() is not None
        except Refused as error:
            if error.code != _NOT_YET:
                raise
            return False
        except OSError:
            return False

    def connectors(self) -> list[str]:
        """Returns the names of the existing connectors, including stopped ones."""
        return list(self.request("GET", "/connectors"))

    def configure(self, connector: str, config: Mapping[str, str], limit: float = 60) -> None:
        """Creates a connector, or gives an existing one another configuration; a stopped one stays stopped.

        Raises BadRequest for a configuration that the connector refuses."""
        self._mark(connector)
        self._until_settled("PUT", f"/connectors/{connector}/config", dict(config), limit)

    def stop_connector(self, connector: str, limit: float = 60) -> None:
        """Stops the connector, and returns when its tasks have ended and its offsets are stored."""
        self._until_settled("PUT", f"/connectors/{connector}/stop", None, limit)
        self._wait(connector, lambda status: status["connector"]["state"] == "STOPPED" and not status["tasks"], limit)

    def resume_connector(self, connector: str, limit: float = 60) -> None:
        """Resumes a stopped connector from its offsets; does not wait for it."""
        self._mark(connector)
        self._until_settled("PUT", f"/connectors/{connector}/resume", None, limit)

    def delete_connector(self, connector: str, limit: float = 60) -> None:
        """Removes a connector; its offsets stay in their topic."""
        self._until_settled("DELETE", f"/connectors/{connector}", None, limit)

    def status(self, connector: str) -> dict[str, Any]:
        """Returns the states of the connector and its tasks, as Kafka Connect reports them; empty if unknown."""
        try:
            found: dict[str, Any] = self.request("GET", f"/connectors/{connector}/status")
        except BadRequest:
            return {}
        return found

    def offsets(self, connector: str) -> list[dict[str, Any]]:
        """Returns the stored offsets, each with its `partition` and `offset`."""
        found: list[dict[str, Any]] = self._until_settled("GET", f"/connectors/{connector}/offsets")["offsets"]
        return found

    def wait_running(self, connector: str, limit: float = 60) -> None:
        """Returns when the connector and a task of it run. Raises StartFailed, with the trace, if one has failed."""
        self._wait(connector, _runs, limit)

    def wait_streaming(self, connector: str, limit: float = 60) -> None:
        """Returns when a source connector reads the binlog, after its snapshot. Raises StartFailed if it has failed.

        Counts what it did since it was last configured or resumed, or the worker started. An unchanged configuration
        restarts no task, so there is nothing to wait for then."""
        prefix = self._until_settled("GET", f"/connectors/{connector}/config")["topic.prefix"]
        line = re.compile(
            rf"connector-{re.escape(prefix)}-change-event-source-coordinator\] .* Keepalive thread is run"
        )
        self._wait(connector, lambda status: _runs(status) and bool(line.search(self._log_of(connector))), limit)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Sends one request to the worker, and returns its answer. Raises BadRequest if it refuses, OSError if it is
        unavailable."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with _NO_PROXY.open(asked, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, f"{self.name}: {method} {path}: {error.read().decode()[:2000]}") from None
        return json.loads(text) if text else None

    def _mark(self, connector: str) -> None:
        self._began_at[connector] = self.log_path.stat().st_size

    def _log_of(self, connector: str) -> str:
        with self.log_path.open("rb") as log:
            log.seek(max(self._began_at.get(connector, 0), self._log_start))
            return log.read().decode(errors="replace")

    def _until_settled(self, method: str, path: str, body: object = None, limit: float = 60) -> Any:
        """Does the same as request(), once the worker's group is not being rebalanced."""
        deadline = time.monotonic() + limit
        while True:
            try:
                return self.request(method, path, body)
            except Refused as error:
                if (error.code != _BUSY and "rebalance" not in str(error)) or time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def _wait(self, connector: str, reached: Callable[[dict[str, Any]], bool], limit: float) -> None:
        deadline = time.monotonic() + limit
        while not ((status := self.status(connector)) and reached(status)):
            if time.monotonic() > deadline:
                raise StartFailed(f"{connector} did not get there within {limit:.0f} s: {status}")
            time.sleep(POLL_SECONDS)


def reads(server: SqlServer, schema: str, kafka_servers: str, *, user: str = "root", **more: str) -> dict[str, str]:
    """Returns the configuration of a connector that streams a schema of a server from its present end on, to topics
    that begin with the schema's name; `more` are further properties, with _ for each dot."""
    login, maria = server.connection(user), server.name.startswith("mariadb")
    of_mysql = {} if maria else {"driver.allowPublicKeyRetrieval": "true"}
    return {
        "connector.class": MARIADB_CONNECTOR if maria else MYSQL_CONNECTOR,
        "topic.prefix": schema,
        "database.hostname": str(login["host"]),
        "database.port": str(login["port"]),
        "database.user": str(login["user"]),
        "database.password": str(login["password"]),
        "database.server.id": str(880_000 + zlib.crc32(schema.encode()) % 100_000),
        "database.ssl.mode": "disable" if maria else "disabled",
        "database.include.list": schema,
        "snapshot.mode": "no_data",
        "include.schema.changes": "false",
        "schema.history.internal.kafka.bootstrap.servers": kafka_servers,
        "schema.history.internal.kafka.topic": f"{schema}-history",
        **of_mysql,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def worker(
    cache: Cache,
    name: str,
    directory: Path,
    port: int | None,
    kafka: KafkaCluster,
    plugins: Sequence[str],
) -> ConnectWorker:
    """Returns a handle for a worker with these of PLUGINS. Raises Unavailable if one can't be installed."""
    if unknown := [one for one in plugins if one not in PLUGINS]:
        raise BadRequest(f"there is no connector '{unknown[0]}'; the known ones are {', '.join(PLUGINS)}.")
    prefixes = [install_jars(cache, "connect", VERSION, COORDINATES)]
    for plugin in plugins:
        version = PLUGINS[plugin].rpartition(":")[2]
        prefixes.append(install_jars(cache, f"debezium-{plugin}", version, (PLUGINS[plugin],), _without_jackson, 2))
    return ConnectWorker(cache, prefixes, name, directory, port, kafka.bootstrap_servers)
