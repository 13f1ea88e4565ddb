"""Turns a row into a document: its index, its id, its version and its typed values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from headrace_documents.errors import MessageError

Value = str | int | float | bool | None

MAX_ID_BYTES = 512  # Elasticsearch's limit; a longer id makes it refuse the whole bulk request, not one item.
MAX_INDEX_BYTES = 255
_BAD_INDEX_CHARACTERS = frozenset('\\/*?"<>| ,#:')

_INTEGERS = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year", "bit", "bool", "boolean"}
)
_FLOATS = frozenset({"double", "float", "real"})
_DECIMALS = frozenset({"decimal", "numeric", "dec", "fixed"})


class Action(NamedTuple):
    """One operation on one document of the index `target`.

    `body` is None for a delete; `row` is the row's index in its message. `owner` is what the name of the index was made
    from (see index_owner): documents of another one must not be in the same index."""

    target: str
    id: str
    version: int
    body: dict[str, Any] | None
    row: int
    owner: tuple[str, ...] = ()
    routing: str = ""


class Rules(NamedTuple):
    """How rows become documents; part of the settings, small enough to be sent to every Spark task."""

    index_template: str = "{database}.{table}"
    id_prefix: str = ""
    types: str = "mysql"
    decimals: str = "string"
    tombstones: bool = False


DELETED = "headrace_deleted"
"""The only field that a document keeps if rows are deleted with tombstones."""
TOMBSTONE: dict[str, Value] = {DELETED: True}


def integer(value: str) -> Value:
    """Returns an integer; a text that is none stays a text."""
    try:
        return int(value)
    except ValueError:
        return value  # e.g. b'1' from another writer: as a text nothing is lost, a guess might lose something


def float_or_text(value: str) -> Value:
    """Returns a floating-point number; a text that is none stays a text."""
    try:
        number = float(value)
    except ValueError:
        return value
    return number if math.isfinite(number) else value  # JSON has no infinity


Converter = Callable[[str], Value]


@lru_cache(maxsize=4096)
def converter(mysql_type: str, decimals: str) -> Converter | None:
    """Returns the function that types a column's text; None if it stays a text.

    `mysql_type` is the declared type (`bigint(20) unsigned`), `decimals` is "string" (no digit is lost) or "number"."""
    base = mysql_type.strip().lower().split("(", 1)[0].split(" ", 1)[0]
    if base in _INTEGERS:
        return integer
    if base in _FLOATS or (decimals == "number" and base in _DECIMALS):
        return float_or_text
    return None


def converters(rules: Rules, types: Mapping[str, str]) -> list[tuple[str, Converter]]:
    """Returns the columns of a message that need typing, each with its function."""
    if rules.types != "mysql":
        return []
    found = []
    for column, mysql_type in types.items():
        convert = converter(mysql_type, rules.decimals)
        if convert is not None:
            found.append((column, convert))
    return found


def document_id(keys: Sequence[str], row: Mapping[str, object], rules: Rules) -> str:
    """Returns the id of a row's document: the key's value, or a JSON array of the values of a compound key.

    Raises MessageError if a key column is absent or NULL, or if Elasticsearch would refuse the id."""
    values = []
    for key in keys:
        value = row.get(key)
        if isinstance(value, (int, float)):  # from an event without a schema
            value = str(value)
        if not isinstance(value, str):
            raise MessageError(f"key column {key!r} has no value in the row")
        values.append(value)
    text = values[0] if len(values) == 1 else orjson.dumps(values).decode()
    name = rules.id_prefix + text
    if not name:
        raise MessageError("the key's value is empty, and Elasticsearch has no empty document id")
    if len(name.encode()) > MAX_ID_BYTES:
        raise MessageError(f"the document id is longer than {MAX_ID_BYTES} bytes")
    return name


@lru_cache(maxsize=4096)
def index_name(template: str, database: str, table: str) -> str:
    """Returns the index of a table, in lower case as Elasticsearch requires.

    Raises MessageError for a name that Elasticsearch does not accept (a table may have almost any name)."""
    name = template.replace("{database}", database).replace("{table}", table).lower()
    if (
        not name
        or name in {".", ".."}
        or name[0] in "-_+"
        or len(name.encode()) > MAX_INDEX_BYTES
        or not _BAD_INDEX_CHARACTERS.isdisjoint(name)
    ):
        raise MessageError(
            f"{name!r} (from table {database}.{table}) can't be the name of an index: set another `index`"
        )
    return name


def rows_index(index: str) -> str:
    """Returns the index with the rows of an index with joins."""
    return f"headrace-rows.{index}"


def index_owner(template: str, database: str, table: str) -> tuple[str, ...]:
    """Returns the parts of database and table that the name of an index is made from. Tables that share an index on
    purpose, by a template without the database or the table, have the same owner; names that only look alike have not:
    `Orders` and `orders`, which are the same in lower case, or `a.b`.`c` and `a`.`b.c`."""
    parts = {"{database}": database, "{table}": table}
    return tuple(value for placeholder, value in parts.items() if placeholder in template)


def expand_prefix(rules: Rules, database: str, table: str) -> Rules:
    """Returns the rules with `{database}` and `{table}` filled into the id prefix."""
    if "{" not in rules.id_prefix:
        return rules
    return rules._replace(id_prefix=rules.id_prefix.replace("{database}", database).replace("{table}", table))
