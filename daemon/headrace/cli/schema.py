"""`headrace schema`: the tables of a destination as they are known at its position."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.cli.common import (
    CommandRefused,
    add_config,
    coordinated,
    destination,
    open_store,
    print_json,
)
from headrace.cli.terminal import show_table
from headrace.mysql.schema.history import SchemaHistory
from headrace.settings.destination import Settings

DESCRIPTION = (
    "Shows what is stored of the schemas of a destination's tables, as they are at its position; see "
    "docs/schema-history.md. Exit status 1: there is no such table, or nothing is known of it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.add_argument("name", metavar="DEST", help="the destination")
    parser.add_argument("table", metavar="SCHEMA.TABLE", nargs="?", help="a table, with its columns (default: all)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(call=run)


async def run(settings: Settings, given: argparse.Namespace) -> int:
    wanted = destination(settings, given.name)
    async with coordinated(settings) as shared:
        store = await open_store(shared, wanted)
        stored, entries = await store.load(given.name), await store.schema_entries(given.name)
    # Which server it is matters to what further statements would do, and none is applied here.
    history = SchemaHistory(lambda _schema, _table: True, mariadb=False, version="8.0.0", lower_case_table_names=0)
    history.restore(entries, stored.last_pos)
    tables = {f"{schema}.{table}": _columns(history, schema, table) for schema, table in sorted(history.known())}
    if given.table:
        if given.table not in tables:
            schema, _, table = given.table.partition(".")
            why = history.unknown_because(schema, table) if table else ""
            raise CommandRefused(
                f"nothing is known of {given.table}{f': {why}' if why else ''}",
                remedy=f"headrace schema {given.name} lists the tables that are known",
            )
        tables = {given.table: tables[given.table]}
    if given.json:
        print_json(tables)
    elif given.table:
        show_table(
            ("COLUMN", "TYPE", "NULL", "KEY"),
            [
                (one["name"], one["type"], "yes" if one["nullable"] else "no", "key" if one["key"] else "")
                for one in tables[given.table]
            ],
        )
    else:
        show_table(("TABLE", "COLUMNS"), [(name, str(len(columns))) for name, columns in tables.items()])
    return 0


def _columns(history: SchemaHistory, schema: str, table: str) -> list[dict[str, Any]]:
    found = history.table(schema, table)
    if found is None:
        return []
    return [
        {
            "name": one.name,
            "type": one.mysql_type,
            "nullable": one.nullable,
            "key": number in found.keys,
        }
        for number, one in enumerate(found.columns)
    ]
