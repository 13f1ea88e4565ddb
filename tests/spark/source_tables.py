"""What tests of commands that read tables have in common: tables that are changed, and a consumer that has them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from tests.support import DaemonProcess, destination_toml

from .conftest import Pipeline

SOURCE = """
[source]
host = "{host}"
port = {port}
user = "root"
password = "root"
partition_rows = 100
"""
PLAIN = """
[[index]]
name = "{name}"
tables = '{schema}\\.t'
"""
JOINED = (
    PLAIN
    + """
[[index.join]]
name = "prices"
tables = '{schema}\\.price'
on = {{ t_id = "id" }}
shape = "list"
"""
)


def start_daemon(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, daemon: Callable[..., DaemonProcess]
) -> DaemonProcess:
    """A daemon that has two tables of `schema` in the pipeline's topic."""
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40))",
        "CREATE TABLE price (id INT PRIMARY KEY, t_id INT, amount DECIMAL(9,2))",
    )
    sink = f'type = "kafka"\nbootstrap_servers = "{pipeline.bootstrap}"'
    text = destination_toml(mysql, schema, sink).replace(f'topic = "{schema}"', f'topic = "{pipeline.topic}"')
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    return process


def configure(pipeline: Pipeline, mysql: Any, schema: str, index: str) -> str:
    """Gives the consumer a declared index and a source; the index's name."""
    name = f"{schema}-{pipeline.topic}"
    # The commands are not tried again where a machine under load answers late.
    pipeline.change("request_timeout = 2.0", "request_timeout = 30.0")
    text = pipeline.config.read_text() + SOURCE.format(host=mysql.host, port=mysql.port)
    pipeline.config.write_text(text + index.format(name=name, schema=schema))
    return name


def start_command(pipeline: Pipeline, *words: str, output: int | None = None) -> subprocess.Popen[bytes]:
    """Starts the command in a process group of its own."""
    command = (sys.executable, "-m", "headrace_spark.cli.main", words[0], "--config", str(pipeline.config))
    with pipeline.log.open("ab") as log:
        process = subprocess.Popen(
            [*command, *words[1:]],
            stdout=log if output is None else output,
            stderr=log,
            env={**os.environ, **pipeline.environment},
            start_new_session=True,
        )
    pipeline.processes.insert(0, process)
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@contextmanager
def writing(mysql: Any, schema: str, statement: Callable[[random.Random], str]) -> Iterator[None]:
    """Two that execute statements until the end of the block. Lax ones: an INT takes what is no number."""
    stop = threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with pymysql.connect(**mysql.connection("root"), database=schema, autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("SET sql_mode = ''")
            while not stop.wait(0.03):
                cursor.execute(statement(chance))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def changes_of(count: int) -> Callable[[random.Random], str]:
    """Statements that change rows of both tables."""

    def statement(chance: random.Random) -> str:
        key = chance.randrange(count * 2)
        return chance.choice(
            (
                f"REPLACE INTO t VALUES ({key}, 'n{chance.random()}')",
                f"DELETE FROM t WHERE id = {key}",
                f"UPDATE t SET name = 'u{chance.random()}' WHERE id BETWEEN {key} AND {key + 3}",
                f"REPLACE INTO price VALUES ({key}, {chance.randrange(count * 2)}, {key}.5)",
                f"DELETE FROM price WHERE id = {key}",
            )
        )

    return statement


def fill(execute: Callable[..., Any], count: int) -> None:
    for start in range(0, count, 500):
        keys = range(start, start + 500)
        execute("INSERT INTO t VALUES " + ",".join(f"({key}, 'old {key}')" for key in keys))
        execute("INSERT INTO price VALUES " + ",".join(f"({key}, {key // 3}, {key}.25)" for key in keys))
