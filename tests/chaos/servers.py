"""The servers of the chaos suite, and the proxies that stand between each daemon and each of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from devstack import Stack
from devstack.servers.kafka import Advertise, KafkaCluster
from devstack.servers.mysql import MysqlServer
from devstack.servers.zookeeper import ZooKeeperEnsemble
from tests.proxy import Proxy


@dataclass
class Links:
    """The ways of one daemon to its servers: a proxy to each of them."""

    mysql: Proxy
    zookeeper: list[Proxy] = field(default_factory=list)
    kafka: dict[int, Proxy] = field(default_factory=dict)
    """By the broker's number."""

    @property
    def all(self) -> list[Proxy]:
        return [self.mysql, *self.zookeeper, *self.kafka.values()]

    @property
    def zookeeper_hosts(self) -> str:
        return ",".join(f"{proxy.host}:{proxy.port}" for proxy in self.zookeeper)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{proxy.host}:{proxy.port}" for proxy in self.kafka.values())


class Servers:
    """One MySQL, three ZooKeepers and three Kafka brokers; each of `nodes` daemons has ways of its own to all."""

    def __init__(self, stack: Stack, nodes: int = 3) -> None:
        self.mysql: MysqlServer = stack.mysql(name="chaos-mysql")
        self.zookeeper: ZooKeeperEnsemble = stack.zookeeper(3, name="chaos-zookeeper")
        self._kafka: dict[tuple[int, int], Proxy] = {}
        self.kafka: KafkaCluster = stack.kafka(
            3, name="chaos-kafka", listeners={f"D{number}": self._advertise(number) for number in range(1, nodes + 1)}
        )
        self.links = [self._link(number) for number in range(1, nodes + 1)]

    def _advertise(self, number: int) -> Advertise:
        def advertise(broker: int, port: int) -> int:
            if (number, broker) in self._kafka:  # another attempt to start the brokers, after a port was taken
                self._kafka[number, broker].close()
            self._kafka[number, broker] = Proxy("127.0.0.1", port)
            return self._kafka[number, broker].port

        return advertise

    def _link(self, number: int) -> Links:
        links = Links(Proxy(self.mysql.host, self.mysql.port))
        links.zookeeper = [Proxy(node.host, node.port) for node in self.zookeeper.nodes]
        links.kafka = {broker: proxy for (of, broker), proxy in self._kafka.items() if of == number}
        return links

    def heal(self) -> None:
        """Everything runs and everything is reachable; whatever was frozen goes on."""
        for links in self.links:
            for proxy in links.all:
                proxy.thaw()
        for cluster in (self.kafka, self.zookeeper):
            cluster.thaw()
            for server in cluster.servers:
                if not server.running:
                    server.start()
        self.mysql.thaw()
        if not self.mysql.running:
            self.mysql.start()

    def close(self) -> None:
        """Ends the proxies and the servers."""
        for links in self.links:
            for proxy in links.all:
                proxy.close()
        for server in (self.kafka, self.zookeeper, self.mysql):
            server.kill()
