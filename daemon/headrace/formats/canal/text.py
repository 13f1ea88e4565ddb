"""Values as the JSON strings of Canal's messages, and the generated printers of whole rows."""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from binascii import hexlify
from collections.abc import Callable
from json.encoder import encode_basestring as quote
from typing import Any

from headrace.model import ABSENT, Column, Row, TableSchema
from headrace.rules.numbers import float_text

RowText = Callable[[Row], str]
_Text = Callable[[Any], str]

_BINARY: dict[str, Callable[[bytes], str]] = {
    "base64": lambda value: f'"{b64encode(value).decode()}"',
    "hex": lambda value: f'"{hexlify(value).decode()}"',
    "latin1": lambda value: quote(value.decode("latin-1")),
}
"""By [message] binary. Only latin1 can hold what JSON escapes."""
_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "bit", "decimal"})
_TIMES = frozenset({"date", "datetime", "timestamp", "time", "year"})
_PLAIN = _NUMBERS | _TIMES
"""Types whose printed value needs no escape."""
_TEXTS = frozenset({"varchar", "char", "tinytext", "text", "mediumtext", "longtext", "json", "vector"})
_LABELLED = frozenset({"enum", "set"})
_FLOATS = frozenset({"float", "double"})
_DECIMALS = re.compile(r"(float|double)\(\d+,(\d+)\)")


def fixed_float(kind: str, decimals: int) -> _Text:
    """FLOAT(m,d) and DOUBLE(m,d) have as many decimals as they are declared with."""

    def text(value: float) -> str:
        if kind == "float":  # what came is the shortest text of the FLOAT; the server rounds its exact value
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        return f'"{value:.{decimals}f}"'

    return text


class Texts:
    """How values become text, by [message] binary."""

    def __init__(self, binary: str) -> None:
        self.binary = _BINARY[binary]

    def text_of(self, value: Any) -> str:
        """A value of any type: everything but NULL is a JSON string."""
        if value is None:
            return "null"
        if type(value) is str:
            return quote(value)
        if type(value) is bytes:
            return self.binary(value)
        if type(value) is float:
            return f'"{float_text(value)}"'
        return f'"{value}"'

    def printer(self, column: Column) -> _Text | None:
        """The function for a column's values that are not NULL; None when the value needs quotes only."""
        kind = column.kind
        if kind in _PLAIN:
            return None
        if kind in _TEXTS:
            return quote
        if kind in _LABELLED:
            return self.text_of  # labels, or numbers when asked for
        if found := _DECIMALS.match(column.mysql_type):
            return fixed_float(found[1], int(found[2]))
        if kind in _FLOATS:
            return lambda value: f'"{float_text(value)}"'
        return self.text_of


class TableText:
    """Prints the rows of one table schema."""

    def __init__(self, schema: TableSchema, texts: Texts) -> None:
        self._names = [quote(column.name) + ":" for column in schema.columns]
        printers = [texts.printer(column) for column in schema.columns]
        self._values: list[_Text] = [printer or _quotes for printer in printers]
        self.row = _row_printer(self._names, printers, self._values)

    def partial_row(self, row: Row) -> str:
        """A row that lacks columns: they are not in the object."""
        names, values = self._names, self._values
        known = [
            name + (value(cell) if cell is not None else "null")
            for name, value, cell in zip(names, values, row, strict=True)
            if cell is not ABSENT
        ]
        return "{" + ",".join(known) + "}"

    def old(self, before: Row, after: Row) -> str:
        """The old values of the columns that changed, as far as they are known."""
        if before == after:
            return "{}"
        names, values = self._names, self._values
        changed = [
            names[i] + (values[i](a) if a is not None else "null")
            for i, (a, b) in enumerate(zip(before, after, strict=True))
            if a is not ABSENT and a != b
        ]
        return "{" + ",".join(changed) + "}"


def _quotes(value: Any) -> str:
    return f'"{value}"'


def _row_printer(names: list[str], printers: list[_Text | None], values: list[_Text]) -> RowText:
    """A function generated for the table schema: one f-string for a row without NULL, column by column for the others.
    Column names come in as constants; the source holds only identifiers made here."""
    constants: dict[str, Any] = {"names": names, "values": values, "zip": zip}
    parts, closing = [], ""
    for i, printer in enumerate(printers):
        text = closing + ("," if i else "{") + names[i]
        if printer is None:
            constants[f"k{i}"], closing = text + '"', '"'
            parts.append(f"{{k{i}}}{{c{i}}}")
        else:
            constants[f"k{i}"], constants[f"f{i}"], closing = text, printer, ""
            parts.append(f"{{k{i}}}{{f{i}(c{i})}}")
    constants["last"] = closing + "}" if names else "{}"
    targets = "".join(f"c{i}, " for i in range(len(names)))
    source = (
        "def row(r):\n"
        "    if None in r:\n"
        "        cells = [k + ('null' if v is None else f(v)) for k, f, v in zip(names, values, r)]\n"
        "        return '{' + ','.join(cells) + '}'\n"
        f"    {f'{targets} = r' if names else 'pass'}\n"
        f"    return f'{''.join(parts)}{{last}}'\n"
    )
    exec(compile(source, "<canal row>", "exec"), constants)
    printer_of_rows: RowText = constants["row"]
    return printer_of_rows
