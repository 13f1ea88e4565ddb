"""Rows as JSON objects, by printers that are generated for a table schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.model import ABSENT, Row

Value = Callable[[Any], str]
"""A value that is not NULL as JSON."""


class RowPrinter:
    """Prints the rows of one schema. `names` are the columns' names in quotes with their colons, `values` print what is
    not NULL. `plain`: by column, the text around a value that needs no call; None where it needs one."""

    def __init__(self, names: Sequence[str], values: Sequence[Value], plain: Sequence[str | None]) -> None:
        self._names, self._values = names, values
        self.row = _row_printer(names, values, plain)

    def partial_row(self, row: Row) -> str:
        """A row that lacks columns: they are not in the object."""
        known = [
            name + ("null" if cell is None else value(cell))
            for name, value, cell in zip(self._names, self._values, row, strict=True)
            if cell is not ABSENT
        ]
        return "{" + ",".join(known) + "}"


def _row_printer(names: Sequence[str], values: Sequence[Value], plain: Sequence[str | None]) -> Callable[[Row], str]:
    """One f-string for a row without NULL, column by column for the others. Column names come in as constants; the
    source holds only identifiers made here."""
    constants: dict[str, Any] = {"names": names, "values": values, "zip": zip}
    parts, closing = [], ""
    for i, (name, around) in enumerate(zip(names, plain, strict=True)):
        constants[f"k{i}"] = closing + ("," if i else "{") + name + (around or "")
        if around is None:
            constants[f"f{i}"] = values[i]
        parts.append(f"{{k{i}}}{{f{i}(c{i})}}" if around is None else f"{{k{i}}}{{c{i}}}")
        closing = around or ""
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
    exec(compile(source, "<row>", "exec"), constants)
    made: Callable[[Row], str] = constants["row"]
    return made
