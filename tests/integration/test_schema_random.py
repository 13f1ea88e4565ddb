"""Random DDL on real servers: what the schema history says it knows is what information_schema shows.

HEADRACE_FUZZ in the environment is the number of statements for each server in the long run; by default a few
hundred.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from devstack import Stack
from tests import versions
from tests.ddl_random import statement
from tests.ddl_replay import Recorder, Replay

pytestmark = pytest.mark.server
STATEMENTS = int(os.environ.get("HEADRACE_FUZZ", "300"))
_A_ROUND = 100


@pytest.fixture(scope="module", params=versions.SQL)
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    return stack.sql(request.param)


@pytest.mark.parametrize("statements", [_A_ROUND, pytest.param(STATEMENTS, marks=pytest.mark.long)])
def test_random_statements_are_followed_exactly_or_not_at_all(server: Any, statements: int) -> None:
    known, unknown = 0, 0
    for seed in range(max(1, statements // _A_ROUND)):
        recorder = Recorder(server)
        try:
            run_round(recorder, Random(seed), f"random{seed}")
            replay = Replay(recorder).run()
        finally:
            recorder.close()
        assert replay.differences == [], f"seed {seed}"
        known, unknown = known + replay.exact, unknown + len(replay.unknown)
    assert known > unknown


def run_round(recorder: Recorder, rng: Random, schema: str) -> None:
    mode = rng.choice(["", "NO_ENGINE_SUBSTITUTION"])
    with recorder.session(mode=mode) as connection, connection.cursor() as cursor:
        charset = rng.choice(["utf8mb4", "latin1"])
        assert recorder.run(schema, cursor, f"CREATE DATABASE {schema} CHARSET {charset}", [schema])
        cursor.execute(f"USE {schema}")
        columns: dict[str, list[str]] = {}
        for _ in range(_A_ROUND):
            sql = statement(rng, columns)
            if recorder.mariadb:  # it adds a hidden column for UNIQUE on a whole TEXT
                sql = sql.replace(" UNIQUE", "")
            recorder.run(schema, cursor, sql, [schema])
            columns = {
                table: [f"`{column.name}`" for column in layout.columns]
                for (_, table), layout in recorder.steps[-1].tables.items()
            }
        cursor.execute(f"DROP DATABASE {schema}")
