"""Connections between simulated processes: bytes in order, late, in pieces, held up, cut off.

As TCP does it: what a partition holds up arrives after it; a reset drops what is under way; a process that ends closes
its connections, a machine that ends does not."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections import Counter, deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, cast

from sim.loop import LANE, Process, SimLoop

_WINDOW = 256 * 1024
"""Bytes under way and unread at which a sender has to wait."""
_LOW = 64 * 1024
_CONNECT_LIMIT = 127.0
"""Seconds until the operating system gives up to connect."""


class Network:
    """All connections. Hosts are names; a process listens at a host and port."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self._listeners = dict[tuple[str, int], tuple[Process, Callable[[End], None]]]()
        self._blocked = Counter[tuple[str, str]]()
        """By pairs of hosts, from the sender to the receiver: how many faults let nothing arrive."""
        self.delay = 0.001
        """Maximum seconds of a way, unless `delays` has another."""
        self.delays = dict[tuple[str, str], float]()
        self.pieces = 0
        """Bytes of the largest piece, each of which takes a time of its own; 0 if what is written at once arrives at
        once."""
        self.connections = list[tuple[End, End]]()
        self._waiting = list[tuple[tuple[str, str], Callable[[], None]]]()
        """What goes on once a pair of hosts is not blocked any more."""
        self._clients = 0
        loop.connect, loop.listen = self._connect, self.backlog

    def listen(self, process: Process, host: str, port: int, factory: Callable[[], Any]) -> None:
        """Accepts connections to host:port; `factory` returns the protocol of each."""
        self._listeners[host, port] = process, lambda end: end.begin(factory())

    def backlog(self, process: Process, host: str, port: int) -> Backlog:
        """Returns a socket that accepts connections to host:port. Raises OSError."""
        if (known := self._listeners.get((host, port))) is not None and known[0].alive:
            raise OSError(errno.EADDRINUSE, f"{host}:{port} is in use")
        made = Backlog(self, host, port)
        self._listeners[host, port] = process, made.put
        return made

    def close(self, host: str, port: int) -> None:
        """Refuses new connections there."""
        self._listeners.pop((host, port), None)

    def block(self, source: str, target: str) -> None:
        """Lets nothing through from one host to another."""
        self._blocked[source, target] += 1

    def blocked(self, source: str, target: str) -> bool:
        """Returns whether nothing gets through from one host to another."""
        return self._blocked[source, target] > 0

    def when_unblocked(self, pair: tuple[str, str], call: Callable[[], None]) -> None:
        """Calls it once unblock() is called for a pair of hosts."""
        self._waiting.append((pair, call))

    def unblock(self, source: str, target: str) -> None:
        """Ends one block(). After the last one, what was held up arrives, in order."""
        self._blocked[source, target] -= 1
        if self._blocked[source, target]:
            return
        ready = [call for pair, call in self._waiting if pair == (source, target)]
        self._waiting = [one for one in self._waiting if one[0] != (source, target)]
        for call in ready:
            call()

    def reset(self, chosen: Callable[[str, str], bool]) -> int:
        """Resets the connections between hosts for which `chosen` is true; returns their number."""
        found = [pair for pair in self.connections if chosen(pair[0].host, pair[1].host)]
        for client, server in found:
            client.lose(_reset())
            server.lose(_reset())
        return len(found)

    def cut(self, chosen: Callable[[str, str], bool]) -> int:
        """Resets the same connections in the middle of what arrives next; returns their number."""
        found = [pair for pair in self.connections if chosen(pair[0].host, pair[1].host)]
        for end in (end for pair in found for end in pair):
            end.cuts = True
        return len(found)

    def send(self, source: str, target: str, deliver: Callable[[], None], context: Context) -> None:
        """Calls `deliver` in a context of the target after the time of a way, in no order with anything else."""
        Wire(self, source, target, context).send(deliver)

    async def _connect(self, factory: Callable[[], Any], host: str, port: int, **more: Any) -> tuple[Any, Any]:
        ours = LANE.get().process
        done, waiting, accepted = self.loop.create_future(), ours.context(), list[End]()

        def refuse(number: int) -> None:
            if not done.done():
                done.set_exception(OSError(number, f"connect to {host}:{port} failed"))

        def arrive() -> None:  # at the operating system, whatever its process does
            if done.done():
                return  # given up: the client's system answers with a reset
            process, serve = self._listeners.get((host, port), (None, None))
            if process is None or serve is None or not process.alive:
                self.send(host, ours.name, lambda: refuse(errno.ECONNREFUSED), waiting)
                return
            self._clients += 1
            there = End(self, process, host, port, ours.name, 30_000 + self._clients)
            here = End(self, ours, ours.name, 30_000 + self._clients, host, port)
            here.join(there)
            there.join(here)
            self.connections.append((here, there))
            accepted.append(here)
            self.send(host, ours.name, lambda: answered(here, serve), waiting)

        def answered(here: End, serve: Callable[[End], None]) -> None:
            if done.done():
                here.abort()  # nobody waits for it any more
            else:
                here.acknowledge(serve)
                done.set_result(here)

        self.send(ours.name, host, arrive, self.loop.world.context())
        try:
            async with asyncio.timeout(_CONNECT_LIMIT):
                end = cast(End, await done)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"connect to {host}:{port} timed out") from None
        except BaseException:
            if done.done() and not done.cancelled() and done.exception() is None:
                done.result().lose(_reset())
            elif accepted:  # the answer is still under way
                accepted[0].abort()
            raise
        protocol = factory()
        end.begin(protocol)
        return end, protocol


class Wire:
    """A way from one host to another. What is sent on it arrives in order, each after some time, and while the pair of
    hosts is blocked not at all. It arrives as a step of the receiver, whose `context` it is."""

    __slots__ = ("_context", "_held", "_last", "_network", "_pair")

    def __init__(self, network: Network, source: str, target: str, context: Context) -> None:
        self._network, self._pair, self._context = network, (source, target), context
        self._last = 0.0
        self._held = deque[tuple[Callable[..., None], Any]]()

    def send(self, deliver: Callable[..., None], *given: Any) -> None:
        """Calls `deliver` at the other end."""
        network = self._network
        delay = network.rng.random() * (network.delays.get(self._pair) or network.delay)
        self._last = max(self._last, network.loop.time() + delay)
        network.loop.call_at(self._last, self._arrive, deliver, *given, context=self._context)

    def _arrive(self, deliver: Callable[..., None], *given: Any) -> None:
        if self._held or self._network.blocked(*self._pair):
            if not self._held:
                self._network.when_unblocked(self._pair, self._unblocked)
            self._held.append((deliver, given))
        else:
            deliver(*given)

    def _unblocked(self) -> None:
        self._network.loop.call_soon(self._release, context=self._context)

    def _release(self) -> None:
        held, self._held = self._held, deque()
        for deliver, given in held:
            deliver(*given)


class End(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, process: Process, host: str, port: int, peer: str, peer_port: int) -> None:
        known = _Socket(host, port, peer, peer_port)
        super().__init__({"peername": known.getpeername(), "sockname": known.getsockname(), "socket": known})
        self._network, self.process, self.host = network, process, host
        self.peer: End = self
        self.context = process.context()
        self._protocol: Any = None
        self._wire: Wire
        self._arrived = deque[bytes]()
        self._reading, self._delivering = True, False
        self._under_way = 0
        """Bytes that were written and that the other end's protocol has not got."""
        self._waits = False
        """Whether our protocol was asked not to write."""
        self._high, self._low = _WINDOW, _LOW
        self._closing = self._lost = self._ends = False
        """`_ends`: the other end writes no more."""
        self._eof_sent = False
        self.cuts = False
        """Whether a part of the next piece arrives, and nothing after it."""
        self._cut = False
        """Whether that has happened: later pieces may arrive at the same time."""
        process.on_end.append(self._process_ended)

    def join(self, peer: End) -> None:
        """Sets the other end."""
        self.peer = peer
        self._wire = Wire(self._network, self.host, peer.host, peer.context)

    def acknowledge(self, serve: Callable[[End], None]) -> None:
        """Lets the other end's process accept the connection."""
        self._wire.send(self.peer.accept, serve)

    def accept(self, serve: Callable[[End], None]) -> None:
        """Gives this end to its process, unless the connection is over by then."""
        if not self._lost:
            serve(self)

    def begin(self, protocol: Any) -> None:
        """Gives this end its protocol."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._deliver_soon()

    # -- writing --------------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._closing or self._eof_sent or not data:
            return
        piece = bytes(data)
        self._under_way += len(piece)
        peer = self.peer
        if not peer.process.alive:
            self._soon(self.lose, _reset())
            return
        size = self._network.pieces or len(piece)
        for at in range(0, len(piece), size):
            self._wire.send(peer._arrive, piece[at : at + size])
        if not self._waits and self._under_way > self._high:
            self._waits = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._under_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _WINDOW if high is None else max(high, 1)
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_sent and not self._closing:
            self._send_end()

    def _send_end(self) -> None:
        self._eof_sent = True
        peer = self.peer
        self._wire.send(peer._arrive_end)

    def _taken(self, size: int) -> None:
        self._under_way -= size
        if self._waits and self._under_way <= self._low and not self._lost:
            self._waits = False
            self._soon(self._protocol.resume_writing)

    # -- reading --------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._deliver_soon()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def _arrive(self, piece: bytes) -> None:
        if self._lost:
            self._wire.send(self.peer.lose, _reset())
            return
        if self._cut:
            return
        if self.cuts:
            piece = piece[: self._network.rng.randrange(len(piece))]
            for end in (self, self.peer):
                end.cuts, end._cut = False, True
                end._soon(end.lose, _reset())
            if not piece:
                return
        self._arrived.append(piece)
        if not self._delivering and self._protocol is not None:
            self._deliver()

    def _arrive_end(self) -> None:
        self._ends = True
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._delivering and self._protocol is not None and (self._arrived or self._ends):
            self._delivering = True
            self._soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        if self._lost or self._closing or not self._reading:
            return
        if self._arrived:
            piece = self._arrived.popleft()
            self.peer._taken(len(piece))
            self._give(piece)
            self._deliver_soon()
        elif self._ends:
            self._ends = False
            if not self._protocol.eof_received():
                self.close()

    def _give(self, piece: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            view = memoryview(piece)
            while view:
                buffer = protocol.get_buffer(len(view))
                size = min(memoryview(buffer).nbytes, len(view))
                buffer[:size] = view[:size]  # type: ignore[index]
                view = view[size:]
                protocol.buffer_updated(size)
        else:
            protocol.data_received(piece)

    # -- the end --------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._eof_sent:
                self._send_end()
            self._finish(None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._send_reset()
            self._finish(None)

    def lose(self, error: Exception | None) -> None:
        """Ends this end, as after a reset by the network."""
        if not self._lost:
            self._closing = True
            self._finish(error)

    def _send_reset(self) -> None:
        peer = self.peer
        self._wire.send(peer.lose, _reset())

    def _finish(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._arrived.clear()
        network, peer = self._network, self.peer
        if peer._lost:
            network.connections = [pair for pair in network.connections if self not in pair]
        if self.process.alive:
            self.process.on_end.remove(self._process_ended)
            if self._protocol is not None:
                self._soon(self._protocol.connection_lost, error)

    def _process_ended(self) -> None:
        if not self._eof_sent and not self._lost:
            self._send_end()
        self._closing = self._lost = True

    def _soon(self, call: Callable[..., Any], *given: Any) -> None:
        self._network.loop.call_soon(call, *given, context=self.context)


class Backlog:
    """A socket that listens, for the loop's sock_accept()."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self._network, self._address = network, (host, port)
        self._waiting = deque[End]()
        self._arrived = asyncio.Event()

    def put(self, end: End) -> None:
        """Adds a connection."""
        self._waiting.append(end)
        self._arrived.set()

    async def accept(self) -> End:
        """Waits for the next connection and returns it."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def getsockname(self) -> tuple[str, int]:
        """Returns its address."""
        return self._address

    def close(self) -> None:
        """Refuses new connections, and resets those that nobody has accepted."""
        self._network.close(*self._address)
        for end in self._waiting:
            end.abort()


class _Socket:
    """What clients and servers ask of a socket."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, 0

    def __init__(self, host: str, port: int, peer: str, peer_port: int) -> None:
        self._name, self._peer = (host, port), (peer, peer_port)

    def getsockname(self) -> tuple[str, int]:
        """Returns this end's address."""
        return self._name

    def setsockopt(self, *_: Any) -> None:
        """Does nothing."""

    def getpeername(self) -> tuple[str, int]:
        """Returns the other end's address."""
        return self._peer

    def fileno(self) -> int:
        """Returns that there is none."""
        return -1


def _reset() -> Exception:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
