"""The rights of an account, as SHOW GRANTS lists them, including those of its active roles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.mysql.wire.connection import SourceConnection
from headrace.ports.tables import Lacks

ALL = "ALL PRIVILEGES"
_GRANT = re.compile(
    r"(?P<verb>GRANT|REVOKE) (?P<rights>.+?) ON (?:\*|(?P<quote>[`'\"]|(?=[\w$]+\.))(?P<schema>.+?)(?P=quote))"
    r"\.(?:\*|(?P<mark>[`'\"]|(?=[\w$]+ ))(?P<table>.+?)(?P=mark)) (?:TO|FROM) ",
    re.IGNORECASE,
)
"""One line of SHOW GRANTS, about tables; names have no quotes where the server's sql_quote_show_create is off."""
_COLUMNS = re.compile(r" \((?:(?:`(?:[^`]|``)*+`|[\w$]++)(?:, )?+)++\)")
"""After a right: the columns that it is limited to."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights, in capitals, on all schemas (`schema` is None), on schemas, or on one table. `limited`: those that apply
    to some columns only. `revoked`: it removes rights on one schema from those on all (MySQL's partial revokes)."""

    schema: str | None
    table: str | None
    rights: frozenset[str]
    limited: frozenset[str]
    revoked: bool = False

    def covers(self, schema: str, *, fold: bool = True) -> bool:
        r"""Returns whether it is about tables of the schema: in a name % and _ are wildcards, unless after a backslash.
        `fold`: names are compared without case."""
        if self.schema is None:
            return True
        pattern = re.sub(r"\\?.", lambda one: {"%": ".*", "_": "."}.get(one[0], re.escape(one[0][-1])), self.schema)
        return re.fullmatch(pattern, schema, re.DOTALL | (re.IGNORECASE if fold else 0)) is not None

    def has(self, right: str) -> bool:
        """Returns whether it includes the right, on all columns."""
        return right in self.rights or ALL in self.rights


def parse(lines: Sequence[str]) -> list[Grant]:
    """Reads the lines of SHOW GRANTS that are about tables."""
    found = []
    for line in filter(None, map(_GRANT.match, lines)):
        rights = line["rights"].upper()
        whole = frozenset(right for right in _COLUMNS.sub("\0", rights).split(", ") if not right.endswith("\0"))
        limited = frozenset(match[1] for match in re.finditer(r"(\w+)" + _COLUMNS.pattern, rights))
        table = line["table"] and line["table"].replace("``", "`")
        found.append(Grant(line["schema"], table, whole, limited, line["verb"].upper() == "REVOKE"))
    return found


async def show_grants(connection: SourceConnection) -> list[Grant]:
    """Returns the grants of the connection's account. Raises SourceError."""
    return parse([str(text) for row in await connection.query("SHOW GRANTS") for text in row.values()])


async def account_of(connection: SourceConnection) -> str:
    """Returns the account that the server uses for us, as a GRANT names it. Raises SourceError."""
    name, _, host = str((await connection.query("SELECT CURRENT_USER() AS u"))[0]["u"]).rpartition("@")
    return "@".join("'" + part.replace("\\", "\\\\").replace("'", "''") + "'" for part in (name, host))


def lacks_of(grants: Sequence[Grant], account: str, *, fold: bool) -> Lacks:
    """Returns the function of Lacks. `fold`: the server compares names without case."""
    name = (lambda text: str(text).lower()) if fold else str
    selecting = [one for one in grants if one.has("SELECT") and not one.revoked]
    revoked = {name(one.schema) for one in grants if one.revoked and one.has("SELECT")}
    tables = {(name(one.schema), name(one.table)) for one in selecting if one.table is not None}
    wider = [one for one in selecting if one.table is None]

    def lacks(schema: str, table: str) -> str:
        everywhere = name(schema) not in revoked
        if (name(schema), name(table)) in tables:
            return ""
        if any(one.covers(schema, fold=fold) and (one.schema is not None or everywhere) for one in wider):
            return ""
        quoted = ".".join(f"`{part.replace('`', '``')}`" for part in (schema, table))
        return f"GRANT SELECT ON {quoted} TO {account};"

    return lacks


async def ask_lacks(connection: SourceConnection) -> Lacks:
    """Returns what the connection's account may not read. Call load_variables() first. Raises SourceError."""
    fold = folds_names(connection.variables)
    return lacks_of(await show_grants(connection), await account_of(connection), fold=fold)


def folds_names(variables: Mapping[str, str]) -> bool:
    """Returns whether the server compares names of tables without case."""
    return variables.get("lower_case_table_names", "0") != "0"
