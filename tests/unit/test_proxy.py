"""The tests' own proxy does what its methods say: the tests of the network rest on it."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.proxy import Proxy
from tests.support import eventually


@pytest.fixture
def target() -> Iterator[int]:
    """A server that greets with 1,000 bytes and then echoes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(b"g" * 1000)
                while data := connection.recv(4096):
                    connection.sendall(data)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def proxy(target: int) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", target) as made:
        yield made


def connect(proxy: Proxy, timeout: float = 10) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout)


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data


def test_it_forwards_both_ways_and_counts(proxy: Proxy) -> None:
    with connect(proxy) as one:
        assert read(one, 1000) == b"g" * 1000
        one.sendall(b"hello")
        assert read(one, 5) == b"hello"
        assert (proxy.connections, proxy.open_connections) == (1, 1)
        eventually(lambda: (proxy.bytes_up, proxy.bytes_down) == (5, 1005))
    eventually(lambda: proxy.open_connections == 0)


@pytest.mark.parametrize("how", ["freeze", "blackhole"])
def test_what_is_frozen_comes_after_the_thaw(proxy: Proxy, how: str) -> None:
    with connect(proxy) as one:
        read(one, 1000)
        getattr(proxy, how)()
        one.sendall(b"hello")
        one.settimeout(0.1)
        with pytest.raises(TimeoutError):
            one.recv(1)
        with connect(proxy, 0.1) as new, pytest.raises(TimeoutError):
            new.recv(1)
        assert proxy.connections == (2 if how == "freeze" else 1)
        proxy.thaw()
        one.settimeout(10)
        assert read(one, 5) == b"hello"
        with connect(proxy) as new:
            assert read(new, 1000) == b"g" * 1000


def read_all(proxy: Proxy) -> bytes:
    """All of a connection; a reset may come before connect() has returned."""
    with socket.socket() as one:
        one.settimeout(10)
        one.connect((proxy.host, proxy.port))
        return read(one, 2000)


@pytest.mark.parametrize("reset", [True, False])
def test_a_cut_ends_the_connection_at_the_byte(proxy: Proxy, reset: bool) -> None:
    proxy.cut(700, reset=reset)
    if reset:
        with pytest.raises(ConnectionResetError):
            read_all(proxy)
    else:
        assert read_all(proxy) == b"g" * 700
    assert proxy.has_cut
    assert proxy.bytes_down == 700
    with connect(proxy) as one:  # once
        assert read(one, 1000) == b"g" * 1000


def test_close_all_and_delay_and_limit(proxy: Proxy) -> None:
    with connect(proxy) as one:
        read(one, 1000)
        proxy.close_all()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
    proxy.delay(0.2)
    begun = time.monotonic()
    with connect(proxy) as one:
        read(one, 1000)
    assert time.monotonic() - begun > 0.19
    proxy.thaw()
    proxy.limit(5000)
    begun = time.monotonic()
    with connect(proxy) as one:
        read(one, 1000)
    assert time.monotonic() - begun > 0.1


def test_connections_that_end_at_once_do_no_harm_to_the_next(proxy: Proxy) -> None:
    for _ in range(200):
        for _ in range(5):
            connect(proxy).close()
        with connect(proxy) as one:
            assert read(one, 1000) == b"g" * 1000
