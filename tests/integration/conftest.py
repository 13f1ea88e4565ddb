"""The fixture of column types: one server a module and kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devstack import Stack
from tests.type_bench import Bench


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def bench(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Bench]:
    mariadb = request.param == "mariadb"
    arguments = ("--max-allowed-packet=64M", "--innodb-log-file-size=256M") if mariadb else ()
    server = (stack.mariadb if mariadb else stack.mysql)(
        None, *arguments, name=f"{request.module.__name__}-{request.param}"
    )
    bench = Bench(server, mariadb=mariadb)
    yield bench
    bench.connection.close()
    server.kill()
