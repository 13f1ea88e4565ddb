"""Writes decoders as Python source: straight-line code for one table schema, compiled once."""

from __future__ import annotations

from typing import Any


class DataOverrun(ValueError):
    """Rows do not end where their container does."""


class CodeWriter:
    """The generated source and its constants. The source has only integers and identifiers made here, never a name from
    the table: strings come in as constants."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {"from_bytes": int.from_bytes, "DataOverrun": DataOverrun}

    def bind(self, name: str, value: Any) -> str:
        """Returns a unique name for the value: two images of one row bind different ones for one column."""
        name = f"{name}_{len(self.constants)}"
        self.constants[name] = value
        return name

    def put(self, indent: int, line: str) -> None:
        """Adds a line, `indent` levels deep."""
        self.lines.append("    " * indent + line)

    def compiled(self) -> Any:
        """Returns the function `decode` of the source."""
        namespace = dict(self.constants)
        exec(compile("\n".join(self.lines), "<row decoder>", "exec"), namespace)
        return namespace["decode"]
