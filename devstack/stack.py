"""A stack: the servers that one test run, demo or benchmark has started, which always ends all of them."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TypeVar

from devstack.cache import Cache, RunDir
from devstack.errors import BadRequest, PortTaken
from devstack.progress import say
from devstack.servers import (
    BROKERS,
    CANAL,
    CHROMIUM,
    ELASTICSEARCH,
    ETCD,
    KAFKA,
    KINDS,
    MARIADB,
    MYSQL,
    OPENSEARCH,
    PROMETHEUS,
    REDIS,
    ROCKETMQ,
    SEAWEEDFS,
    SPARK,
    SQL,
    ZOOKEEPER,
    Handle,
)
from devstack.servers.base import Tls
from devstack.servers.canal import CanalServer, Properties
from devstack.servers.chromium import ChromiumServer
from devstack.servers.connect import ConnectWorker, worker
from devstack.servers.elasticsearch import ElasticsearchServer
from devstack.servers.etcd import EtcdCluster
from devstack.servers.kafka import Advertise, KafkaCluster
from devstack.servers.mariadb import MariadbServer
from devstack.servers.mysql import MysqlServer
from devstack.servers.opensearch import OpensearchServer
from devstack.servers.prometheus import PrometheusServer
from devstack.servers.rabbitmq import MEMORY, RabbitmqServer
from devstack.servers.redis import RedisServer
from devstack.servers.rocketmq import RocketmqServer
from devstack.servers.seaweedfs import SeaweedfsServer
from devstack.servers.spark import SparkCluster
from devstack.servers.sql import SqlServer
from devstack.servers.zookeeper import ZooKeeperEnsemble

H = TypeVar("H", bound=Handle)
PORT_TRIES = 3


def _exit_on_term(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class Stack:
    """Starts servers and ends them all: on leaving the `with` block, at exit, and on signals.

    If this process is killed, each server's guard ends it within a moment. Methods may be called from several threads.
    `keep=True` leaves data and logs in the cache. `lasting=True` is for benchmarks: see Cache."""

    def __init__(
        self, cache: str | os.PathLike[str] | Cache | None = None, *, keep: bool = False, lasting: bool = False
    ) -> None:
        self.cache = cache if isinstance(cache, Cache) else Cache(cache, lasting=lasting)
        self._mutex = threading.RLock()
        self._handles: list[Handle] = []
        self._names: set[str] = set()
        self._owner = os.getpid()
        self._run: RunDir | None = RunDir(self.cache, keep)
        self.directory = self._run.path
        atexit.register(self.stop)
        # by default TERM ends Python without any clean-up; an existing handler is kept
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _exit_on_term)

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def handles(self) -> list[Handle]:
        """Returns all servers of this stack, in the order of their start."""
        with self._mutex:
            return list(self._handles)

    def mysql(self, port: int | None = None, *extra_args: str, name: str = "mysql", server_id: int = 1) -> MysqlServer:
        """Starts a MySQL server; extra mysqld arguments come last, so they override the defaults."""
        return self._launch(name, lambda n, d: MYSQL.server(self.cache, n, d, port, server_id, extra_args))

    def mariadb(
        self, port: int | None = None, *extra_args: str, name: str = "mariadb", server_id: int = 1
    ) -> MariadbServer:
        """Starts a MariaDB server; extra mariadbd arguments come last, so they override the defaults."""
        return self._launch(name, lambda n, d: MARIADB.server(self.cache, n, d, port, server_id, extra_args))

    def sql(
        self, kind: str, port: int | None = None, *extra_args: str, name: str | None = None, server_id: int = 1
    ) -> SqlServer:
        """Starts a MySQL or MariaDB of any version, by its name in the registry."""
        return self._launch(name or kind, lambda n, d: SQL[kind].server(self.cache, n, d, port, server_id, extra_args))

    def kafka(
        self,
        brokers: int = 1,
        port: int | None = None,
        *,
        name: str = "kafka",
        settings: dict[str, str] | None = None,
        listeners: Mapping[str, Advertise] | None = None,
    ) -> KafkaCluster:
        """Starts a Kafka cluster; `settings` go into each server.properties and override the defaults; for `listeners`
        see devstack.servers.kafka."""
        return self._launch(name, lambda n, d: KAFKA.cluster(self.cache, n, d, port, brokers, settings, listeners))

    def connect(
        self,
        kafka: KafkaCluster,
        port: int | None = None,
        *,
        plugins: Sequence[str] = ("mysql",),
        name: str = "connect",
    ) -> ConnectWorker:
        """Starts a worker of Kafka Connect on a Kafka cluster, with connectors of devstack.servers.connect.PLUGINS."""
        return self._launch(name, lambda n, d: worker(self.cache, n, d, port, kafka, plugins))

    def zookeeper(
        self, nodes: int = 1, port: int | None = None, *, name: str = "zookeeper", tls: Tls | None = None
    ) -> ZooKeeperEnsemble:
        """Starts a ZooKeeper ensemble."""
        return self._launch(name, lambda n, d: ZOOKEEPER.ensemble(self.cache, n, d, port, nodes, tls))

    def etcd(
        self, nodes: int = 1, port: int | None = None, *, name: str = "etcd", tls: Tls | None = None
    ) -> EtcdCluster:
        """Starts an etcd cluster."""
        return self._launch(name, lambda n, d: ETCD.cluster(self.cache, n, d, port, nodes, tls))

    def elasticsearch(
        self, port: int | None = None, *, name: str = "elasticsearch", heap: str = "512m"
    ) -> ElasticsearchServer:
        """Starts an Elasticsearch node."""
        return self._launch(name, lambda n, d: ELASTICSEARCH.node(self.cache, n, d, port, heap))

    def opensearch(self, port: int | None = None, *, name: str = "opensearch", heap: str = "512m") -> OpensearchServer:
        """Starts an OpenSearch node."""
        return self._launch(name, lambda n, d: OPENSEARCH.node(self.cache, n, d, port, heap))

    def rabbitmq(
        self,
        port: int | None = None,
        *,
        kind: str = "rabbitmq",
        name: str | None = None,
        memory_watermark: int = MEMORY,
        tls: Tls | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> RabbitmqServer:
        """Starts a RabbitMQ node; above `memory_watermark` bytes it blocks publishers, `settings` override those of
        rabbitmq.conf."""
        return self._launch(
            name or kind, lambda n, d: BROKERS[kind].server(self.cache, n, d, port, memory_watermark, tls, settings)
        )

    def rocketmq(
        self,
        port: int | None = None,
        *,
        name: str = "rocketmq",
        heap: str = "256m",
        settings: Mapping[str, str] | None = None,
    ) -> RocketmqServer:
        """Starts a RocketMQ node (name server, broker, proxy); `settings` override those of broker.conf."""
        return self._launch(name, lambda n, d: ROCKETMQ.node(self.cache, n, d, port, heap, settings))

    def canal(
        self,
        destinations: Mapping[str, Properties],
        port: int | None = None,
        *,
        name: str = "canal",
        settings: Properties | None = None,
    ) -> CanalServer:
        """Starts a server of Canal with the instance.properties of each destination (devstack.servers.canal.reads);
        `settings` override those of canal.properties."""
        return self._launch(name, lambda n, d: CANAL.server(self.cache, n, d, port, destinations, settings or {}))

    def redis(self, port: int | None = None, *, name: str = "redis") -> RedisServer:
        """Starts a Redis."""
        return self._launch(name, lambda n, d: REDIS.server(self.cache, n, d, port))

    def seaweedfs(self, port: int | None = None, *, name: str = "seaweedfs") -> SeaweedfsServer:
        """Starts a server of S3's protocol."""
        return self._launch(name, lambda n, d: SEAWEEDFS.create(self.cache, n, d, port))

    def chromium(self, port: int | None = None, *, name: str = "chromium") -> ChromiumServer:
        """Starts a browser without a window."""
        return self._launch(name, lambda n, d: CHROMIUM.server(self.cache, n, d, port))

    def prometheus(
        self, targets: Sequence[str], rules: Sequence[Path], port: int | None = None, *, name: str = "prometheus"
    ) -> PrometheusServer:
        """Starts a Prometheus that scrapes these daemons (host:port) each second and evaluates these files of rules."""
        return self._launch(name, lambda n, d: PROMETHEUS.server(self.cache, n, d, port, targets, rules))

    def spark(
        self,
        workers: int = 2,
        *,
        name: str = "spark-standalone",
        cores: int = 1,
        memory: str = "1g",
    ) -> SparkCluster:
        """Starts a master of Spark with workers, each with this many cores and this much memory for executors."""
        return self._launch(name, lambda n, d: SPARK.cluster(self.cache, n, d, None, workers, cores, memory))

    def start(self, kind: str, port: int | None = None) -> Handle:
        """Starts a server of the registry by name, with its defaults."""
        if kind not in KINDS:
            raise BadRequest(f"there is no server '{kind}'; the known ones are {', '.join(KINDS)}.")
        return self._launch(kind, lambda n, d: KINDS[kind].create(self.cache, n, d, port))

    def _launch(self, wanted: str, create: Callable[[str, Path], H]) -> H:
        with self._mutex:
            if self._run is None:
                raise BadRequest("this stack has been stopped; make a new one.")
            name, number = wanted, 2
            while name in self._names:
                name, number = f"{wanted}-{number}", number + 1
            self._names.add(name)
        for attempt in range(1, PORT_TRIES + 1):
            # a new directory for each attempt: the failed one's data has the port that was taken
            handle = create(name, self.directory / (name if attempt == 1 else f"{name}.{attempt}"))
            with self._mutex:
                self._handles.append(handle)
            try:
                handle.start()
            except PortTaken:
                self._discard(handle)
                if handle.port_was_given or attempt == PORT_TRIES:
                    raise
                say(f"{name}: somebody took the port; trying others ...")
            except BaseException:
                self._discard(handle)
                raise
            else:
                return handle
        raise AssertionError("not reached")

    def _discard(self, handle: Handle) -> None:
        handle.kill()
        with self._mutex:
            self._handles.remove(handle)

    def stop(self) -> None:
        """Ends all servers and removes their data and logs; with `keep` they are stopped in order, and both stay."""
        # a forked child inherits this object and its exit hook, but not the servers
        if os.getpid() != self._owner:
            return
        with self._mutex:
            run, self._run = self._run, None
            handles = list(reversed(self._handles))
        if run is None:
            return
        try:
            # data that is about to be removed needs no orderly shutdown, which can take seconds
            ends = [handle.stop if run.keep else handle.kill for handle in handles]
            threads = [threading.Thread(target=end, name="devstack-stop") for end in ends]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            for handle in handles:
                handle.kill()
            raise
        finally:
            atexit.unregister(self.stop)
            run.close()
