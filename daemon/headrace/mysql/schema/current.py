"""The schemas of tables as the source has them now, for commands that look at rules; a stream needs more care."""

from __future__ import annotations

from collections.abc import Callable

from headrace.model import TableSchema
from headrace.mysql.schema.tables import TABLES_SQL, read_tables
from headrace.mysql.sql.dialect import dialect_of
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.destination import SourceSettings


async def schemas_now(source: SourceSettings, wanted: Callable[[str, str], bool]) -> dict[tuple[str, str], TableSchema]:
    """By schema and table; tables whose description is not understood are left out. Raises SourceError."""
    async with await SourceConnection.open(address_of(source)) as connection:
        variables = await connection.load_variables()
        dialect = dialect_of(variables.get("version", ""), mariadb=connection.is_mariadb)
        names = [(str(row["s"]), str(row["t"])) for row in await connection.query(TABLES_SQL)]
        return {
            name: TableSchema(*name, read.columns, read.keys)
            async for name, read in read_tables(connection.query, [name for name in names if wanted(*name)], dialect)
            if not isinstance(read, str)
        }
