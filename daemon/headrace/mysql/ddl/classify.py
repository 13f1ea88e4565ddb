"""What a QUERY event is about: kind, category, the tables it names, and what it does to their layouts."""

from __future__ import annotations

from headrace.model import DdlKind
from headrace.mysql.ddl.actions import StatementInfo
from headrace.mysql.query_event import QueryEvent


def classify(query: QueryEvent, *, mariadb: bool, version: str) -> StatementInfo:
    """What the statement is. Never raises: what is not understood has `tables` None and says so in `problem`.

    `version` is the server's version as @@version prints it; executable comments and defaults depend on it.
    """
    return StatementInfo(DdlKind.QUERY, "ddl", None, query.schema, problem="the DDL parser is not there yet")
