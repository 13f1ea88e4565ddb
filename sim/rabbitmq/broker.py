"""A model of a RabbitMQ node: accounts, virtual hosts, exchanges, queues, faults, and what a checker asks of it.

broker = Broker()
server = await loop.create_server(broker.protocol, "127.0.0.1", 0)
broker.declare_queue("shop", arguments={"x-queue-type": "quorum"})
... clients connect ...
[message.id for message in broker.messages("shop")]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from sim.rabbitmq.connection import Connection
from sim.rabbitmq.messages import Message, Queue
from sim.rabbitmq.refusals import Failure, Refusal
from sim.rabbitmq.routing import PREDEFINED, Exchange

ALL = ".*"


@dataclass
class Permissions:
    """Regular expressions over the names of exchanges and queues in one virtual host."""

    configure: str = ALL
    write: str = ALL
    read: str = ALL
    topics: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By exchange: which routing keys may be written and read."""


@dataclass
class Account:
    """An account, with its permissions by virtual host."""

    password: str
    permissions: dict[str, Permissions] = field(default_factory=dict)


class VirtualHost:
    """Exchanges and queues of one virtual host."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.exchanges = {one: Exchange(one, kind, True, False, {}) for one, kind in PREDEFINED.items()}
        self.queues: dict[str, Queue] = {}

    def exchange(self, name: str) -> Exchange:
        """Returns an exchange. Raises Refusal."""
        if (found := self.exchanges.get(name)) is None:
            raise Refusal(404, f"no exchange '{name}' in vhost '{self.name}'")
        return found

    def queue(self, name: str) -> Queue:
        """Returns a queue. Raises Refusal."""
        if (found := self.queues.get(name)) is None:
            raise Refusal(404, f"no queue '{name}' in vhost '{self.name}'")
        return found

    def route(self, exchange: Exchange, message: Message) -> list[Queue]:
        """Returns the queues that get a message."""
        if not exchange.name:
            found = self.queues.get(message.routing_key)
            return [found] if found is not None else []
        headers = message.headers if exchange.kind == "headers" else None
        names = exchange.route(message.routing_key, headers)
        if (
            not names
            and (other := self.exchanges.get(str(exchange.arguments.get("alternate-exchange", "")))) is not None
        ):
            names = other.route(message.routing_key, headers) if other.name else []
        return [self.queues[name] for name in names]

    def remove_queue(self, name: str) -> None:
        """Deletes a queue, with its bindings."""
        queue = self.queues.pop(name)
        for exchange in self.exchanges.values():
            exchange.bindings = {key: value for key, value in exchange.bindings.items() if key[0] != name}
        queue.fail()


class Broker:
    """One node, with the account guest/guest and the virtual host /."""

    def __init__(self) -> None:
        self.accounts = {"guest": Account("guest", {"/": Permissions()})}
        self.vhosts = {"/": VirtualHost("/")}
        self.connections: dict[Connection, None] = {}
        self.unknown: list[str] = []
        """Names of methods that a client sent and the model does not know."""
        self.frame_max, self.channel_max, self.heartbeat = 131_072, 2047, 60
        self.max_message = 16 * 1024 * 1024
        self.up = True
        self.frozen = False
        """Whether it answers nothing, and reads nothing."""
        self.alarm = ""
        """Why publishers are blocked; "" if they are not."""
        self.confirm_time = 0.0
        """Seconds until a queue that is declared from now on confirms a message."""
        self.published = 0
        """How many messages came."""
        self.largest = 0
        """Bytes of a body above which messages are refused, by any queue; 0 for no limit."""
        self._nacks = 0
        self._lost_confirms = 0

    def protocol(self) -> Connection:
        """Returns the protocol of a new connection, for create_server()."""
        return Connection(self)

    # -- what a checker asks ------------------------------------------------------------------------------------------

    def messages(self, queue: str, vhost: str = "/") -> list[Message]:
        """Returns what a queue holds, without what consumers have taken."""
        return list(self.vhosts[vhost].queues[queue].messages)

    # -- what an operator does ----------------------------------------------------------------------------------------

    def add_vhost(self, name: str) -> VirtualHost:
        """Creates a virtual host that guest may use."""
        self.accounts["guest"].permissions[name] = Permissions()
        return self.vhosts.setdefault(name, VirtualHost(name))

    def add_user(self, name: str, password: str, vhost: str = "/") -> None:
        """Creates an account that may do everything in one virtual host."""
        self.accounts[name] = Account(password, {vhost: Permissions()})

    def allow(self, user: str, vhost: str = "/", configure: str = ALL, write: str = ALL, read: str = ALL) -> None:
        """Sets the permissions of an account in a virtual host."""
        given = self.accounts[user].permissions.setdefault(vhost, Permissions())
        given.configure, given.write, given.read = configure, write, read

    def allow_topics(self, user: str, vhost: str, exchange: str, write: str, read: str = ALL) -> None:
        """Sets which routing keys an account may use at a topic exchange."""
        self.accounts[user].permissions[vhost].topics[exchange] = write, read

    def declare_exchange(self, name: str, kind: str = "topic", vhost: str = "/", **arguments: Any) -> Exchange:
        """Creates a durable exchange."""
        return self.vhosts[vhost].exchanges.setdefault(name, Exchange(name, kind, True, False, arguments))

    def declare_queue(
        self,
        name: str,
        exchange: str = "",
        binding: str = "#",
        vhost: str = "/",
        arguments: dict[str, Any] | None = None,
    ) -> Queue:
        """Creates a durable queue, bound to an exchange if one is given."""
        host = self.vhosts[vhost]
        queue = host.queues.get(name)
        if queue is None:
            queue = host.queues[name] = Queue(name, True, dict(arguments or {}), None)
            queue.confirm_time = self.confirm_time
        if exchange:
            host.exchange(exchange).bindings.setdefault((name, binding), {})
        return queue

    def delete_queue(self, name: str, vhost: str = "/") -> None:
        """Deletes a queue with what it holds."""
        self.vhosts[vhost].remove_queue(name)

    # -- faults -------------------------------------------------------------------------------------------------------

    def raise_alarm(self, reason: str = "low on memory") -> None:
        """Blocks each connection at the next message that it publishes."""
        self.alarm = reason

    def end_alarm(self) -> None:
        """Goes on with what the blocked connections have sent."""
        self.alarm = ""
        for connection in list(self.connections):
            connection.unblock()

    def freeze(self) -> None:
        """Answers and reads nothing, as a process that was stopped; connections stay open."""
        self.frozen = True

    def thaw(self) -> None:
        """Ends freeze()."""
        self.frozen = False
        for connection in list(self.connections):
            connection.resume()

    def crash(self, lose: int = 0) -> None:
        """Kills it. Each durable queue loses up to `lose` of its last messages that were not confirmed, and those that
        are not persistent; other queues vanish."""
        self.up = self.frozen = False
        self.alarm = ""
        self.reset_connections()
        for host in self.vhosts.values():
            for queue in list(host.queues.values()):
                if not queue.durable:
                    host.remove_queue(queue.name)
                    continue
                queue.lose(lose)
                if queue.kind == "classic":
                    kept = [one for one in queue.messages if one.persistent]
                    queue.messages.clear()
                    queue.messages.extend(kept)
            host.exchanges = {name: one for name, one in host.exchanges.items() if one.durable}

    def start(self) -> None:
        """Starts it again."""
        self.up = True

    def reset_connections(self) -> None:
        """Resets all connections of its clients."""
        for connection in list(self.connections):
            connection.abort()

    def close_connections(self, reason: str = "Node was put into maintenance mode") -> None:
        """Closes all connections in order, as an operator does."""
        for connection in list(self.connections):
            connection.fail(Failure(320, reason))

    def nack_next(self, count: int = 1) -> None:
        """Refuses the next messages that are published in confirm mode, as when a queue's process dies."""
        self._nacks += count

    def lose_confirms(self, count: int = 1) -> None:
        """Resets the connection of each of the next messages when it would be confirmed, or refused."""
        self._lost_confirms += count

    def end_losses(self) -> None:
        """Ends nack_next() and lose_confirms(), whatever is left of them."""
        self._nacks = self._lost_confirms = 0

    # -- for channels -------------------------------------------------------------------------------------------------

    def take_nack(self, size: int) -> bool:
        """Returns whether the present message, of so many bytes, is to be refused."""
        if self.largest and size > self.largest:
            return True
        if self._nacks:
            self._nacks -= 1
            return True
        return False

    def take_lost_confirm(self) -> bool:
        """Returns whether the present confirm is to be lost."""
        if self._lost_confirms:
            self._lost_confirms -= 1
            return True
        return False

    def check(self, user: str, vhost: str, operation: str, kind: str, name: str) -> None:
        """Checks a permission: configure, write or read. Raises Refusal."""
        given = self.accounts[user].permissions.get(vhost)
        shown = "amq.default" if kind == "exchange" and not name else name
        if given is None or not _fits(getattr(given, operation), shown):
            raise Refusal(403, f"{operation} access to {kind} '{shown}' in vhost '{vhost}' refused for user '{user}'")

    def check_topic(self, user: str, vhost: str, operation: str, exchange: Exchange, key: str) -> None:
        """Checks the permission for a routing key at a topic exchange. Raises Refusal."""
        given = self.accounts[user].permissions[vhost].topics.get(exchange.name)
        if exchange.kind != "topic" or given is None or _fits(given[operation == "read"], key):
            return
        raise Refusal(
            403,
            f"{operation} access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost}' refused for user "
            f"'{user}'",
        )


def _fits(pattern: str, name: str) -> bool:
    """Returns whether a permission's expression, of which "" fits nothing, is found in a name."""
    return bool(pattern) and re.search(pattern, name) is not None
