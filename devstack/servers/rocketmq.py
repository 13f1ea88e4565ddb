"""Apache RocketMQ: name server, broker and proxy in one virtual machine, which a small launcher restricts to
loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from devstack import ports
from devstack.cache import Cache
from devstack.errors import DevstackError, StartFailed
from devstack.server import POLL_SECONDS, Server
from devstack.servers.base import Kind
from devstack.servers.jvm import compile_java, install_jars, java_command

VERSION = "5.5.0"
COORDINATES = (f"org.apache.rocketmq:rocketmq-proxy:{VERSION}", f"org.apache.rocketmq:rocketmq-namesrv:{VERSION}")
SOURCES = Path(__file__).resolve().parent.parent / "rocketmq"
MAIN = "RocketNode"
CLUSTER, BROKER = "devstack", "b0"
# request codes of RocketMQ's remoting protocol
UPDATE_TOPIC, UPDATE_BROKER, ROUTE_OF_TOPIC, UPDATE_GROUP = 17, 25, 105, 200
SUCCESS = 0
READ_AND_WRITE = 6
CALL_SECONDS = 10.0
# an HTTP/2 client's preface with empty SETTINGS; a server answers with SETTINGS, frame type 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
MessageType = Literal["NORMAL", "FIFO"]


def receive(connection: socket.socket, size: int) -> bytes:
    """Returns exactly this many bytes. Raises ConnectionError if the other side closes before."""
    data = b""
    while len(data) < size:
        if not (chunk := connection.recv(size - len(data))):
            raise ConnectionError("the connection was closed")
        data += chunk
    return data


def call(host: str, port: int, code: int, fields: Mapping[str, str], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
    """Sends one request of the remoting protocol; returns header and body of the answer. Raises OSError if there is
    none.

    A frame is its length, the header's length (its highest byte names the encoding, 0 for JSON), header and body."""
    header = {"code": code, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0, "extFields": dict(fields)}
    encoded = json.dumps(header).encode()
    with socket.create_connection((host, port), timeout=CALL_SECONDS) as connection:
        connection.sendall(struct.pack(">II", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        size, length = struct.unpack(">II", receive(connection, 8))
        rest = receive(connection, size - 4)
    return json.loads(rest[: length & 0xFFFFFF]), rest[length & 0xFFFFFF :]


def speaks_http2(host: str, port: int) -> bool:
    """Returns whether a server answers an HTTP/2 preface, as gRPC does."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(PREFACE)
            return receive(connection, 4)[3] == 4
    except OSError:
        return False


class RocketmqServer(Server):
    """A name server, a broker and a proxy. Its port is the proxy's, where clients of version 5 connect with gRPC."""

    # an orderly end takes 15 s of waits and loses no less than a kill: stored data is in mapped files
    stop_seconds = 2.0

    def __init__(
        self,
        cache: Cache,
        prefix: Path,
        name: str,
        directory: Path,
        port: int | None,
        heap: str,
        settings: Mapping[str, str],
    ) -> None:
        super().__init__(name, directory, port)
        self.name_server_port = ports.free_port()
        self.broker_port = ports.free_port(also=-2)  # the broker listens on a second one, two below
        self._replication_port = ports.free_port()
        self._cache = cache
        self._prefix = prefix
        self._heap = heap
        self._settings = dict(settings)

    @property
    def endpoints(self) -> str:
        """Returns the address for RocketMQ clients of version 5: the proxy's host:port."""
        return self.address

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "endpoints": self.endpoints}

    def settings(self) -> dict[str, str]:
        """Returns the broker.conf of this node."""
        return {
            "brokerClusterName": CLUSTER,
            "brokerName": BROKER,
            "brokerId": "0",
            "brokerIP1": self.host,
            "brokerIP2": self.host,
            "bindAddress": self.host,
            "listenPort": str(self.broker_port),
            "haListenPort": str(self._replication_port),
            "namesrvAddr": f"{self.host}:{self.name_server_port}",
            "storePathRootDir": str(self.datadir),
            "storePathCommitLog": str(self.datadir / "commitlog"),
            # files of the default sizes are a gigabyte and more
            "mappedFileSizeCommitLog": str(64 << 20),
            "mappedFileSizeConsumeQueue": "600000",
            "maxIndexNum": "100000",
            "maxHashSlotNum": "25000",
            "diskMaxUsedSpaceRatio": "98",
            "flushDiskType": "ASYNC_FLUSH",
            "autoCreateTopicEnable": "false",
            # until this time has passed once, a thread of the broker reads the clock continuously
            "transactionMetricFlushInterval": "200",
            # by default the store of delayed messages is written every second, which takes an eighth of a core
            "timerFlushIntervalMs": "600000",
            **self._settings,
        }

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)
        broker = "".join(f"{key}={value}\n" for key, value in self.settings().items())
        (self.directory / "broker.conf").write_text(broker)
        (self.directory / "namesrv.conf").write_text(f"bindAddress={self.host}\nlistenPort={self.name_server_port}\n")
        proxy = {
            "rocketMQClusterName": CLUSTER,
            "proxyMode": "local",
            "namesrvAddr": f"{self.host}:{self.name_server_port}",
            "grpcServerPort": self.port,
            "localServeAddr": self.host,
        }
        (self.directory / "proxy.json").write_text(json.dumps(proxy))

    def environment(self) -> Mapping[str, str]:
        return {"ROCKETMQ_HOME": str(self.directory)}

    def command(self) -> list[str]:
        options = [
            f"-Duser.home={self.directory}",  # it logs there
            "-Drocketmq.log.root.level=WARN",
            "-XX:MaxDirectMemorySize=256m",
            "--add-opens=java.base/java.net=ALL-UNNAMED",
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
            "-cp",
            f"{self._prefix}/classes:{self._prefix}/lib/*",  # in this order: a class of ours replaces one of theirs
        ]
        return [*java_command(self._cache, self._heap, *options), MAIN, str(self.directory)]

    def is_ready(self) -> bool:
        if "rocketmq-proxy startup successfully" not in self.log_since_start():
            return False
        # SELF_TEST_TOPIC is one of the broker's own: the name server has it once the broker has registered. That fails
        # if it comes before the broker's first search for name servers, and the next attempt is 10 s later; setting the
        # permission, to its present value, makes the broker register at once.
        if not self._has_route("SELF_TEST_TOPIC"):
            with contextlib.suppress(DevstackError):
                self._order("register", UPDATE_BROKER, {}, f"brokerPermission={READ_AND_WRITE}\n".encode())
            return False
        return speaks_http2(self.host, self.port)

    def wait_ready(self) -> None:
        """Waits as for every server; one that listens on more than loopback is ended at once."""
        super().wait_ready()
        if outside := [f"{a}:{p}" for a, p in ports.listeners(self.pid) if not a.startswith("127.")]:
            self.kill()
            raise StartFailed(f"{self.name} listens on {', '.join(outside)}, and not only on {self.host}.")

    def _has_route(self, topic: str) -> bool:
        try:
            answer, _ = call(self.host, self.name_server_port, ROUTE_OF_TOPIC, {"topic": topic})
        except OSError:
            return False
        return bool(answer["code"] == SUCCESS)

    def _order(self, what: str, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        try:
            answer, _ = call(self.host, self.broker_port, code, fields, body)
        except OSError as error:
            raise DevstackError(f"{self.name} could not {what}: {error}.") from error
        if answer["code"] != SUCCESS:
            raise DevstackError(f"{self.name} could not {what}: {answer.get('remark', answer['code'])}.")

    def create_topic(self, topic: str, queues: int = 4, message_type: MessageType = "NORMAL") -> None:
        """Creates a topic; clients may use it when this returns. FIFO topics are those for messages with a group."""
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(READ_AND_WRITE),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": f"+message.type={message_type}",
        }
        self._order(f"make the topic {topic}", UPDATE_TOPIC, fields)
        deadline = time.monotonic() + CALL_SECONDS
        while not self._has_route(topic):  # the broker notifies the name server later
            if time.monotonic() > deadline:
                raise DevstackError(f"{self.name}: the topic {topic} did not reach the name server.")
            time.sleep(POLL_SECONDS)

    def create_group(self, group: str, *, in_order: bool = False) -> None:
        """Creates a consumer group; with `in_order` it gets one message of a message group at a time."""
        settings = {"groupName": group, "consumeMessageOrderly": in_order, "consumeEnable": True, "retryMaxTimes": 16}
        self._order(f"make the group {group}", UPDATE_GROUP, {}, json.dumps(settings).encode())


class Rocketmq(Kind):
    """Apache RocketMQ."""

    name = "rocketmq"
    version = VERSION

    def _prefix(self, cache: Cache) -> Path:
        def finish(fresh: Path) -> None:
            compile_java(cache, sorted(SOURCES.glob("*.java")), fresh)

        return install_jars(cache, self.name, self.version, COORDINATES, finish)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> RocketmqServer:
        return self.node(cache, name, directory, port)

    def node(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        heap: str = "256m",
        settings: Mapping[str, str] | None = None,
    ) -> RocketmqServer:
        """Returns a handle for a node; `settings` override those of broker.conf."""
        return RocketmqServer(cache, self._prefix(cache), name, directory, port, heap, settings or {})
