"""The DDL corpus on real servers: after every statement the schema history knows what information_schema shows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from devstack import Stack
from tests import versions
from tests.ddl_corpus import CASES, Case
from tests.ddl_replay import Recorder, Replay

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=versions.SQL)
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    return stack.sql(request.param)


def run_case(recorder: Recorder, case: Case) -> None:
    number = next(_numbers)
    db, other = f"ddl{number}", f"other{number}"
    with recorder.session(mode=case.mode, names=case.names) as connection, connection.cursor() as cursor:
        for schema in (db, other):
            recorder.run(case.name, cursor, f"CREATE DATABASE {schema} CHARACTER SET utf8mb4", [db, other])
        if "without a default schema" not in case.name:
            cursor.execute(f"USE {db}")
        for statement in case.statements:
            sql = statement.replace("{db}", db).replace("{other}", other).replace("{{", "{").replace("}}", "}")
            fine = recorder.run(case.name, cursor, sql.removeprefix("!"), [db, other])
            lacks = recorder.dialect.version < 50700 and not recorder.mariadb and not sql.startswith("!")
            assert lacks or fine != sql.startswith("!"), f"{case.name}: {sql} " + ("ran" if fine else "did not run")


@pytest.mark.server
def test_the_history_follows_every_statement_of_the_corpus_exactly(server: Any) -> None:
    recorder = Recorder(server)
    try:
        kind = "mariadb" if recorder.mariadb else "mysql"
        cases = [case for case in CASES if kind in case.servers and recorder.dialect.version >= case.since]
        for case in cases:
            run_case(recorder, case)
        replay = Replay(recorder).run()
    finally:
        recorder.close()
    assert "\n".join(replay.differences) == ""
    allowed = {(case.name, table) for case in cases for table in case.unknown}
    assert {(case, table): why for case, table, why in replay.unknown if (case, table) not in allowed} == {}
    statements = sum(len(case.statements) for case in cases)
    print(f"{kind}: {statements} statements, {replay.exact} table schemas compared, {replay.maps} row descriptions")
    assert statements >= 80
    assert replay.exact > statements
    assert replay.maps > statements / 2
