"""`headrace route`: where the changes of a table, or of one row, go, and which rule decides."""

from __future__ import annotations

import argparse
from typing import Any

import orjson

from headrace.cli.common import add_config, aligned, print_json
from headrace.cli.common import destination as named
from headrace.cli.wiring import inspection, new_format
from headrace.errors import ConfigError, SourceError
from headrace.model import Column, Operation, Row, RowsChange, TableSchema
from headrace.pipeline.projection import Projections
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, Settings

DESCRIPTION = (
    "Asks the rules of one destination, or of all, about a table. The table's columns are asked from the source; when "
    "it can't be reached or has no such table, they are those of --row, and --key names the primary key. Exit status "
    "0: some destination publishes it; 1: none does, or something failed; 2: the configuration or the command is wrong."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.add_argument("table", metavar="SCHEMA.TABLE", help="the table")
    parser.add_argument("--destination", metavar="DEST", help="one destination (default: all)")
    parser.add_argument("--row", type=_row, metavar="JSON", help='a row, such as \'{"id": 7, "city": "北京"}\'')
    parser.add_argument(
        "--key", type=lambda text: text.split(","), metavar="COLUMN,...", help="the primary key, instead of asking"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(call=command)


async def command(settings: Settings, given: argparse.Namespace) -> int:
    """Prints an answer for each destination; returns the exit status."""
    schema, dot, table = given.table.partition(".")
    if not dot or not schema or not table:
        raise ConfigError([f"'{given.table}' should be a table with its schema, such as shop.orders"])
    wanted = [named(settings, given.destination)] if given.destination else list(settings.destinations.values())
    answers = {one.name: await _answer(one, schema, table, given.row, given.key) for one in wanted}
    if given.json:
        print_json(answers)
    else:
        for name, answer in answers.items():
            print(f"{name}:")
            print(aligned([(key, _text(value)) for key, value in answer.items()]))
    return 0 if any(answer["published"] for answer in answers.values()) else 1


async def _answer(
    settings: DestinationSettings, schema: str, table: str, row: dict[str, Any] | None, key: list[str] | None
) -> dict[str, Any]:
    projections = Projections(settings, new_format(settings))
    if not projections.captures(schema, table):
        return {"published": False, "why": "[filter] include and exclude leave the table out"}
    route = projections.route(schema, table)
    answer: dict[str, Any] = {
        "published": True,
        "topic": route.topic,
        "topic_rule": route.topic_rule or "route.topic",
        "partition_rule": route.key.rule if route.key is not None else "route.partition",
        "partitions": route.partitions,
    }
    if not route.spreads:
        answer |= {"partition": route.partition, "address": projections.address(route, route.partition)}
    found, note = await _table_schema(settings, schema, table, row, key)
    if note:
        answer["note"] = note
    if found is None:
        return answer
    projection = projections.project(found)
    answer["columns"] = [column.name for column in projection.schema.columns]
    if row is None:
        return answer
    values = _values(found, row)
    parts = projection.parts(RowsChange(found, Operation.INSERT, [values], None, 0, 0, ""), keys=True)
    if not parts:
        return answer | {
            "published": False,
            "why": "its [[filter.where]] leaves the row out, or [filter] operations an insert",
        }
    (part,) = parts
    (shown,), (keys,) = part.change.rows, part.keys
    names = [column.name for column in projection.schema.columns]
    return answer | {
        "partition": part.partition,
        "address": part.address,
        "key": keys[0].removeprefix(f"{projection.family} ") if keys else "",
        "row": {
            name: value.decode("latin-1") if isinstance(value, bytes) else value
            for name, value in zip(names, shown, strict=True)
        },
    }


async def _table_schema(
    settings: DestinationSettings, schema: str, table: str, row: dict[str, Any] | None, key: list[str] | None
) -> tuple[TableSchema | None, str]:
    """Returns the table's schema, and the text about where it comes from."""
    note = "the columns are those of --row"
    if key is None:
        try:
            found = await inspection(settings, DaemonSettings()).tables(lambda *name: name == (schema, table))
            if (schema, table) in found:
                return found[schema, table], ""
            note = "the source has no such table"
        except SourceError as error:
            note = f"the source can't be asked: {error.args[0]}"
    if row is None:
        return None, note
    columns = tuple(_column(name, value) for name, value in row.items())
    if strange := sorted(set(key or ()) - set(row)):
        raise ConfigError([f"--key names {', '.join(strange)}, which --row does not have"])
    indexes = {column.name: i for i, column in enumerate(columns)}
    return TableSchema(schema, table, columns, tuple(indexes[name] for name in key or ())), note


def _column(name: str, value: Any) -> Column:
    if isinstance(value, int):
        return Column(name, "bigint", -5)
    if isinstance(value, float):
        return Column(name, "double", 8)
    return Column(name, "varchar(255)", 12, charset="utf8mb4")


def _values(schema: TableSchema, row: dict[str, Any]) -> Row:
    names = {column.name.lower() for column in schema.columns}
    if strange := sorted(name for name in row if name.lower() not in names):
        raise ConfigError([f"--row names {', '.join(strange)}, which {schema.name} does not have"])
    given = {name.lower(): value for name, value in row.items()}
    return tuple(_value(column, given.get(column.name.lower())) for column in schema.columns)


def _value(column: Column, value: Any) -> Any:
    """Returns the value in the decoder's form: integers and floats as numbers, everything else as MySQL prints it."""
    if value is None:
        return None
    whole = column.kind in {"tinyint", "smallint", "mediumint", "int", "bigint", "bit"}
    try:
        if whole:
            return int(value)
        if column.kind in {"float", "double"}:
            return float(value)
    except (TypeError, ValueError):
        raise ConfigError([f"--row: {value!r} is no value for {column.name} {column.mysql_type}"]) from None
    if column.charset == "binary":
        return str(value).encode()
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _row(text: str) -> dict[str, Any]:
    try:
        row = orjson.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(row, dict) or not row:
        raise argparse.ArgumentTypeError("should be a JSON object: columns and their values")
    return row


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return value if isinstance(value, str) else orjson.dumps(value).decode()
