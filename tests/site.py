"""A server with a schema of one test's own, and what compares its table with the messages that came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql

from tests.support import eventually, read_jsonl, read_messages, replay

Run = Callable[..., Any]


@contextmanager
def sites_on(server: Any, *names: str) -> Iterator[dict[str, Site]]:
    """Several, each with an empty table `t` that has an id."""
    made = {name: Site(server, name) for name in names}
    for site in made.values():
        site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    yield made
    for site in made.values():
        site.close()


class Site:
    """A server with a schema of the test's own, and sessions on it."""

    def __init__(self, server: Any, schema: str) -> None:
        self.server, self.schema = server, schema
        self.sessions: list[Any] = []
        self.run = self.session(None)
        self.run(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4", f"USE {schema}")

    @property
    def is_mariadb(self) -> bool:
        return "maria" in self.run("SELECT VERSION()")[0][0].lower()

    def session(self, database: str | None = "") -> Run:
        connection = pymysql.connect(
            **self.server.connection("root"),
            database=self.schema if database == "" else database,
            autocommit=True,
            charset="utf8mb4",
        )
        self.sessions.append(connection)

        def run(*statements: str) -> Any:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return cursor.fetchall()

        return run

    def close(self) -> None:
        """Decides XA transactions that a failed test left, whose locks would hold up the DROP."""
        for connection in self.sessions[1:]:
            connection.close()
        self.run("SET lock_wait_timeout = 10")
        for form, gtrid, bqual, data in self.run("XA RECOVER"):
            name = data if isinstance(data, str) else data.decode()
            if name.startswith(self.schema):
                self.run(f"XA ROLLBACK '{name[:gtrid]}','{name[gtrid : gtrid + bqual]}',{form}")
        self.run(f"DROP DATABASE {self.schema}")
        self.sessions[0].close()

    def table(self, name: str = "t") -> dict[str, dict[str, Any]]:
        """What the table holds, in the form that replay() gives: text by column, by id."""
        columns = [row[0] for row in self.run(f"SHOW COLUMNS FROM {name}")]
        listed = ",".join(f"CAST(`{column}` AS CHAR)" for column in columns)
        return {row[0]: dict(zip(columns, row, strict=True)) for row in self.run(f"SELECT {listed} FROM {name}")}


def wait_for(out: Path, key: str, table: str = "t", limit: float = 30) -> None:
    """Until the row with this id was inserted in the output."""

    def seen() -> bool:
        return any(
            message["table"] == table and row.get("id") == key
            for message in read_jsonl(out)
            for row in message["data"]
            if message["type"] == "INSERT"
        )

    eventually(seen, limit, lambda: f"row {key} did not come; last messages: {read_messages(out)[-3:]}")


def equal(site: Site, out: Path) -> None:
    """Writes a last row and compares the table with what the messages make."""
    site.run("INSERT INTO t (id) VALUES (999999)")
    wait_for(out, "999999")
    assert replay([m for m in read_jsonl(out) if m["table"] == "t"]) == site.table()
