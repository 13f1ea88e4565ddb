"""A TCP proxy of the tests' own, between a daemon and a server: it freezes, drops, delays, limits and cuts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

_PIECE = 64 * 1024


class _Link:
    """One accepted connection and the one to the target behind it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.tasks: list[asyncio.Task[None]] = []

    def close(self, loop: asyncio.AbstractEventLoop, *, reset: bool) -> None:
        for task in self.tasks:
            task.cancel()
        for end in (self.client, self.server):
            # Else the loop learns of the cancelled tasks' ends only when another socket may have the number of this.
            loop.remove_reader(end)
            loop.remove_writer(end)
            if reset:  # a close with a linger time of 0 sends RST
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


class Proxy:
    """Listens on a port of 127.0.0.1 and forwards to the target, in a thread with a loop of its own.

    freeze()     accepts and holds: nothing is forwarded, nothing is closed; the kernel still confirms what is sent
    blackhole()  the same, and new connections hang: as behind a firewall that begins to drop packets
    refuse()     ends every connection, and new ones are refused: as of a server that has stopped
    delay()      each piece is handed on so many seconds later
    limit()      so many bytes a second towards the client
    cut()        ends a connection after so many more bytes towards the client, mostly in the middle of a packet
    thaw()       ends all of these; what was held is forwarded
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._loop = asyncio.new_event_loop()
        self._listener = self._listen(0)
        self.port = int(self._listener.getsockname()[1])
        self.host = "127.0.0.1"
        self.connections = 0
        """Accepted so far."""
        self.bytes_down = 0
        """Handed to clients so far."""
        self.bytes_up = 0
        self.rewrite: Callable[[bytes], bytes] | None = None
        """Makes another one of the first piece that a server says on each connection."""
        self.heard = b""
        """What clients have said, while there is a `rewrite`."""
        self._links: set[_Link] = set()
        self._go = asyncio.Event()
        self._go.set()
        self._delay = 0.0
        self._rate = 0.0
        self._cut_after: int | None = None
        self._cut_by_reset = True
        self._connecting: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._call(self._accept_on)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def open_connections(self) -> int:
        return len(self._links)

    def freeze(self) -> None:
        self._call(self._go.clear)

    def blackhole(self) -> None:
        self._call(self._go.clear)
        self._call(self._accept_off)

    def refuse(self) -> None:
        def stop() -> None:
            self._accept_off()
            self._listener.close()

        self._call(stop)
        self.close_all()

    def delay(self, seconds: float) -> None:
        self._call(lambda: setattr(self, "_delay", seconds))

    def limit(self, bytes_per_second: float) -> None:
        self._call(lambda: setattr(self, "_rate", bytes_per_second))

    def cut(self, after_bytes: int, *, reset: bool = True) -> None:
        """Once; `reset` says whether by RST or by FIN."""

        def set_it() -> None:
            self._cut_after, self._cut_by_reset = after_bytes, reset

        self._call(set_it)

    @property
    def has_cut(self) -> bool:
        """Whether the cut that was asked for has happened."""
        return self._cut_after is None

    def thaw(self) -> None:
        def all_off() -> None:
            self._delay = self._rate = 0.0
            self._cut_after = None
            self._go.set()
            if self._listener.fileno() < 0:
                self._listener = self._listen(self.port)

        self._call(all_off)
        self._call(self._accept_on)

    def close_all(self, *, reset: bool = True) -> None:
        """Ends every connection that is open."""

        def end() -> None:
            for link in list(self._links):
                self._end(link, reset=reset)

        self._call(end)

    def close(self) -> None:
        if self._thread.is_alive():
            self.close_all()
            self._call(self._accept_off)
            self._call(self._listener.close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)

    # In the thread.

    def _run(self) -> None:
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        for link in list(self._links):  # of connections that were made while the others were closed
            self._end(link, reset=True)
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    def _call(self, what: Callable[[], Any]) -> None:
        """Runs it in the loop and returns when it has run."""
        done = threading.Event()

        def run() -> None:
            try:
                what()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10)

    @staticmethod
    def _listen(port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        listener.setblocking(False)
        return listener

    def _accept_on(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept_off(self) -> None:
        """The kernel goes on to answer SYNs until its backlog is full, but no byte ever comes: the greeting hangs."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # gone again
            client, _ = self._listener.accept()
            self.connections += 1
            task = self._loop.create_task(self._connect(client))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: socket.socket) -> None:
        server = socket.socket()
        try:
            for end in (client, server):
                end.setblocking(False)
            await self._loop.sock_connect(server, self._target)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, asyncio.CancelledError):
            client.close()
            server.close()
            return
        link = _Link(client, server)
        self._links.add(link)
        link.tasks = [
            self._loop.create_task(self._forward(link, server, client, down=True)),
            self._loop.create_task(self._forward(link, client, server, down=False)),
        ]

    async def _forward(self, link: _Link, source: socket.socket, target: socket.socket, *, down: bool) -> None:
        first = True
        try:
            while True:
                await self._go.wait()
                size = max(1, min(_PIECE, int(self._rate / 20))) if down and self._rate else _PIECE
                piece = await self._loop.sock_recv(source, size)
                if not piece:
                    break
                if self.rewrite is not None and down and first:
                    piece = self.rewrite(piece)
                elif self.rewrite is not None and not down:
                    self.heard += piece
                first = False
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._go.wait()  # what came while it was frozen is held as well
                if down and self._cut_after is not None and len(piece) >= self._cut_after:
                    await self._loop.sock_sendall(target, piece[: self._cut_after])
                    self.bytes_down += self._cut_after
                    self._cut_after = None
                    self._loop.call_soon(lambda: self._end(link, reset=self._cut_by_reset))
                    return
                await self._loop.sock_sendall(target, piece)
                if down:
                    self.bytes_down += len(piece)
                    if self._cut_after is not None:
                        self._cut_after -= len(piece)
                    if self._rate:
                        await asyncio.sleep(len(piece) / self._rate)
                else:
                    self.bytes_up += len(piece)
        except OSError:
            pass
        self._loop.call_soon(lambda: self._end(link, reset=False))

    def _end(self, link: _Link, *, reset: bool) -> None:
        if link in self._links:
            self._links.discard(link)
            link.close(self._loop, reset=reset)
