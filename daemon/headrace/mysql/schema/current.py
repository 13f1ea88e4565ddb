"""The layouts of tables as the source has them now, for commands that look at rules; a stream needs more care."""

from __future__ import annotations

from collections.abc import Callable

from headrace.model import TableSchema
from headrace.mysql.schema.ddl.dialect import dialect_of
from headrace.mysql.schema.tables import TABLES_SQL, by_table, statements, table_schemas
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.destination import SourceSettings

_AT_ONCE = 500
"""Tables whose columns are asked for by one statement."""


async def schemas_now(source: SourceSettings, wanted: Callable[[str, str], bool]) -> dict[tuple[str, str], TableSchema]:
    """By schema and table; tables whose description is not understood are left out. Raises SourceError."""
    async with await SourceConnection.open(address_of(source)) as connection:
        variables = await connection.load_variables()
        dialect = dialect_of(variables.get("version", ""), mariadb=connection.is_mariadb)
        names = [(str(row["s"]), str(row["t"])) for row in await connection.query(TABLES_SQL)]
        found: dict[tuple[str, str], TableSchema] = {}
        for schema in sorted({schema for schema, _ in names}):
            tables = [table for of, table in names if of == schema and wanted(of, table)]
            for i in range(0, len(tables), _AT_ONCE):
                part = tables[i : i + _AT_ONCE]
                columns, keys, collations = [by_table(await connection.query(sql)) for sql in statements(schema, part)]
                for table in part:
                    rows = columns.get(table, []), keys.get(table, []), collations.get(table, [])
                    made, _ = table_schemas(schema, *rows, dialect)
                    if table in made:
                        found[schema, table] = made[table][0]
        return found
