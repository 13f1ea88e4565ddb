"""`headrace schema`: the tables of a destination as known at its position."""

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
from headrace.cli.wiring import ADAPTERS
from headrace.model import TableSchema
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
    known = ADAPTERS.source_adapter().stored_tables(entries, stored.last_pos)
    tables = {table.name: _columns(table) for table in known.tables.values()}
    if given.table:
        if given.table not in tables:
            schema, _, table = given.table.partition(".")
            why = known.unknown_because(schema, table) if table else ""
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


def _columns(table: TableSchema) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "type": one.mysql_type, "nullable": one.nullable, "key": number in table.keys}
        for number, one in enumerate(table.columns)
    ]
