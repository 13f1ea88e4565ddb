"""Rows of one table schema as JSON objects, printed by a function that is generated for the schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from json.encoder import encode_basestring as quote
from typing import Any, ClassVar

from headrace.large_values import LargeValue
from headrace.model import ABSENT, Row, TableSchema

Printer = Callable[[Any], str]
"""Prints a value that is not NULL as JSON."""


class RowText:
    """Prints rows, with one printer for each column. `plain` has, by printer, what is on both sides of a value that may
    be formatted without a call."""

    structured: ClassVar[Mapping[Printer, Callable[[LargeValue], str]]] = {}
    """Printers of large values if a printer makes more than a JSON string of a value."""

    def __init__(
        self, schema: TableSchema, printers: Sequence[Printer], plain: dict[Printer, str], binary: str
    ) -> None:
        """`binary`: how bytes are printed in a column of no other form; see LargeValue.stand_in()."""
        self._binary = binary
        self.names = [quote(column.name) + ":" for column in schema.columns]
        self.printers, self._plain = printers, plain

    @cached_property
    def row(self) -> Callable[[Row], str]:
        """Prints a row that has all columns, and no large values."""
        return _row_printer(self.names, self.printers, self._plain)

    def cell(self, printer: Printer, value: Any) -> str:
        """Prints a value, which may be large or NULL."""
        if value is None:
            return "null"
        if type(value) is not LargeValue:
            return printer(value)
        structured = self.structured.get(printer)
        return structured(value) if structured is not None else value.stand_in(self._binary)

    def unusual_row(self, row: Row) -> str:
        """Prints a row that has large values, or lacks columns: those are omitted."""
        known = [
            name + self.cell(printer, cell)
            for name, printer, cell in zip(self.names, self.printers, row, strict=True)
            if cell is not ABSENT
        ]
        return "{" + ",".join(known) + "}"


def _row_printer(names: list[str], printers: Sequence[Printer], plain: dict[Printer, str]) -> Callable[[Row], str]:
    """Returns one f-string for a row without NULL, and code column by column for others. Column names come in as
    constants; the source has only identifiers made here."""
    constants: dict[str, Any] = {"names": names, "printers": printers, "zip": zip}
    parts, closing = [], ""
    for i, printer in enumerate(printers):
        around = plain.get(printer)
        constants[f"k{i}"], closing = closing + ("," if i else "{") + names[i] + (around or ""), around or ""
        if around is None:
            constants[f"f{i}"] = printer
        parts.append(f"{{k{i}}}{{f{i}(c{i})}}" if around is None else f"{{k{i}}}{{c{i}}}")
    targets = "".join(f"c{i}, " for i in range(len(names)))
    # `None in r` would compare each value with None by its type's equality, which costs several times as much.
    lacks = " or ".join(f"c{i} is None" for i in range(len(names)))
    source = (
        "def row(r):\n"
        f"    {f'{targets} = r' if names else 'pass'}\n"
        f"    if {lacks or 'False'}:\n"
        "        cells = [k + ('null' if v is None else f(v)) for k, f, v in zip(names, printers, r)]\n"
        "        return '{' + ','.join(cells) + '}'\n"
        f"    return f'{''.join(parts) or '{{'}{closing}}}}}'\n"
    )
    exec(compile(source, "<row>", "exec"), constants)
    row: Callable[[Row], str] = constants["row"]
    return row
