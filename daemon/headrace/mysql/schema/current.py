"""The schemas of tables as the source has them now, for commands that check rules; a stream needs more care."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace.errors import StateStoreError
from headrace.model import TableSchema
from headrace.mysql.schema.entries import tables_named
from headrace.mysql.schema.tables import BASE_TABLES_SQL, TABLES_SQL, read_tables
from headrace.mysql.sql.dialect import server_dialect
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.mysql.wire.grants import ask_lacks
from headrace.rules.patterns import named_tables
from headrace.settings.destination import SourceSettings

Captures = Callable[[str, str], bool]


def captured_names(include: str, captures: Captures, entries: Iterable[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    """Returns captured tables that are known without asking the source: [filter] names them, or the schema history
    does. Raises StateStoreError."""
    try:
        known = tables_named(entries)
    except (KeyError, TypeError, ValueError) as error:
        raise StateStoreError(f"the stored schema history can't be read ({error!r})") from error
    return tuple(sorted(name for name in known | set(named_tables(include)[0]) if captures(*name)))


async def unreadable_now(
    source: SourceSettings, wanted: Captures, named: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """Returns the tables that the account may not read whole rows of, each with the GRANT: of those that it can see and
    of those that are `named`. Raises SourceError."""
    async with await SourceConnection.open(address_of(source)) as connection:
        await connection.load_variables()
        lacks = await ask_lacks(connection)
        shown = {(str(row["s"]), str(row["t"])) for row in await connection.query(BASE_TABLES_SQL)}
        return {name: grant for name in sorted(shown | set(named)) if wanted(*name) and (grant := lacks(*name))}


async def schemas_now(source: SourceSettings, wanted: Captures) -> dict[tuple[str, str], TableSchema]:
    """Returns table schemas by schema and table, without tables whose description is not understood, or which the
    account may not read completely. Raises SourceError."""
    async with await SourceConnection.open(address_of(source)) as connection:
        variables = await connection.load_variables()
        dialect = server_dialect(variables)
        lacks = await ask_lacks(connection)
        names = [(str(row["s"]), str(row["t"])) for row in await connection.query(TABLES_SQL)]
        names = [name for name in names if wanted(*name) and not lacks(*name)]
        return {
            name: TableSchema(*name, read.columns, read.keys)
            async for name, read in read_tables(connection.query, names, dialect)
            if not isinstance(read, str)
        }
