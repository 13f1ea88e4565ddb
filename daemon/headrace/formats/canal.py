"""Canal's flat JSON (com.alibaba.otter.canal.protocol.FlatMessage), with `_pos` added as the row order of consumers."""

from __future__ import annotations

from collections.abc import Callable
from json.encoder import encode_basestring as _quote
from typing import Any

import orjson

from headrace.formats.base import Format, Messages, Place
from headrace.model import Row, RowsChange, SchemaChange, TableSchema, TransactionMark

_RowText = Callable[[Row], str]


def text_of(value: Any) -> str:
    """A value as Canal's messages carry it: everything but NULL is a JSON string."""
    if value is None:
        return "null"
    if type(value) is str:
        return _quote(value)
    if type(value) is bytes:
        return _quote(value.decode("latin-1"))
    if type(value) is float:
        return f'"{float_text(value)}"'
    return f'"{value}"'


def float_text(value: float) -> str:
    """A FLOAT or DOUBLE without `.0` behind a whole number, as MySQL prints it."""
    text = repr(value)
    return text[:-2] if text.endswith(".0") else text


class _Table:
    """What is the same in every message of one table layout, and its generated row printer."""

    def __init__(self, schema: TableSchema) -> None:
        dump = orjson.dumps
        types = {column.name: column.mysql_type for column in schema.columns}
        numbers = {column.name: column.sql_type for column in schema.columns}
        keys = [schema.columns[i].name for i in schema.keys]
        database = dump(schema.schema).decode()
        table = dump(schema.table).decode()
        self.middle = f'"database":{database},"es":'
        self.types = f',"isDdl":false,"mysqlType":{dump(types).decode()},"old":'
        pk = dump(keys).decode() if keys else "null"
        self.tail = f',"pkNames":{pk},"sql":"","sqlType":{dump(numbers).decode()},"table":{table},"ts":'
        self.names = [_quote(column.name) + ":" for column in schema.columns]
        self.row = _row_printer(schema, self.names)

    def old(self, before: Row, after: Row) -> str:
        """The old values of the columns that changed."""
        if before == after:
            return "{}"
        names = self.names
        changed = [
            names[i] + text_of(a)
            for i, (a, b) in enumerate(zip(before, after, strict=True))
            if a != b or type(a) is not type(b)
        ]
        return "{" + ",".join(changed) + "}"


_QUOTED = frozenset({"varchar", "char", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json"})
"""Types whose value is a str that may hold anything, and is escaped."""
_PLAIN = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "bit", "decimal"})
_PLAIN |= {"date", "datetime", "timestamp", "time", "year"}
"""Types whose printed value needs no escape."""


def _row_printer(schema: TableSchema, names: list[str]) -> _RowText:
    """A function generated for the layout: one f-string for a row without NULL, column by column for the others.
    Column names come in as constants; the source holds only identifiers made here."""
    constants: dict[str, Any] = {"quote": _quote, "text_of": text_of, "names": names, "zip": zip}
    parts, closing = [], ""
    for i, column in enumerate(schema.columns):
        kind = column.mysql_type.partition("(")[0].partition(" ")[0]
        text = closing + ("," if i else "{") + names[i]
        if kind in _PLAIN:
            constants[f"k{i}"], closing = text + '"', '"'
            parts.append(f"{{k{i}}}{{c{i}}}")
        else:
            constants[f"k{i}"], closing = text, ""
            parts.append(f"{{k{i}}}{{{'quote' if kind in _QUOTED else 'text_of'}(c{i})}}")
    constants["last"] = closing + "}"
    targets = "".join(f"c{i}, " for i in range(len(names)))
    source = (
        "def row(r):\n"
        "    if None in r:\n"
        "        return '{' + ','.join([k + text_of(v) for k, v in zip(names, r)]) + '}'\n"
        f"    {targets} = r\n"
        f"    return f'{''.join(parts)}{{last}}'\n"
    )
    exec(compile(source, "<canal row>", "exec"), constants)
    printer: _RowText = constants["row"]
    return printer


class CanalFormat(Format):
    """One message a rows event, or one a row. `id` counts messages since the destination's start."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[TableSchema, _Table]] = {}
        self._id = 0

    def _table(self, schema: TableSchema) -> _Table:
        # By identity: a layout lives as long as its cache entry, which holds it, so the id can't be reused.
        entry = self._tables.get(id(schema))
        if entry is None:
            if len(self._tables) > 10_000:
                self._tables.clear()
            entry = self._tables[id(schema)] = (schema, _Table(schema))
        return entry[1]

    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        """See Format."""
        table = self._table(change.schema)
        self._id += 1
        rows = ",".join(map(table.row, change.rows))
        if change.before is None:
            old = "null"
        else:
            old = f"[{','.join(map(table.old, change.before, change.rows))}]"
        return (
            f'{{"data":[{rows}],{table.middle}{change.commit_time_us // 1000},"gtid":"{change.gtid}","id":{self._id}'
            f'{table.types}{old}{table.tail}{now_ms},"type":"{change.operation}","_pos":"{change.pos}"}}'
        ).encode()

    def encode_each(self, change: RowsChange, now_ms: int) -> list[bytes]:
        """See Format. Only the row, its old values, the id and `_pos` differ from message to message."""
        table = self._table(change.schema)
        head = f'],{table.middle}{change.commit_time_us // 1000},"gtid":"{change.gtid}","id":'
        tail = f'{table.tail}{now_ms},"type":"{change.operation}","_pos":"'
        types, row, pos, number = table.types, table.row, change.pos, self._id + 1
        self._id += len(change.rows)
        if change.before is None:
            return [
                f'{{"data":[{row(r)}{head}{number + i}{types}null{tail}{pos + i}"}}'.encode()
                for i, r in enumerate(change.rows)
            ]
        old = table.old
        return [
            f'{{"data":[{row(r)}{head}{number + i}{types}[{old(b, r)}]{tail}{pos + i}"}}'.encode()
            for i, (b, r) in enumerate(zip(change.before, change.rows, strict=True))
        ]

    def schema_change(self, change: SchemaChange, place: Place, now_ms: int) -> list[Messages]:
        """See Format."""
        self._id += 1
        messages = Messages()
        messages.add(
            f'{{"data":null,"database":{_quote(change.schema)},"es":{change.commit_time_us // 1000}'
            f',"gtid":"{change.gtid}","id":{self._id},"isDdl":{"true" if change.is_ddl else "false"}'
            f',"mysqlType":null,"old":null,"pkNames":null,"sql":{_quote(change.sql)},"sqlType":null'
            f',"table":{_quote(change.table)},"ts":{now_ms},"type":"{change.kind}","_pos":"{change.pos}"}}'.encode()
        )
        return [messages]

    def mark(self, mark: TransactionMark, place: Place, now_ms: int) -> list[Messages]:
        """See Format."""
        raise NotImplementedError
