"""Reads files of Java properties, and Spring's placeholders in their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_DEEPEST = 20
"""Maximum depth of nested placeholders."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SEPARATOR = re.compile(r"[ \t\f]*[=: \t\f][ \t\f]*")
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")


@dataclass(frozen=True, slots=True)
class Property:
    """One property, with its file and line."""

    name: str
    value: str
    file: Path
    line: int

    def problem(self, sentence: str) -> str:
        """Returns the sentence after the file, the line and the name."""
        return f"{self.file}: line {self.line}: {self.name}: {sentence}"


def read_properties(file: Path, problems: list[str]) -> dict[str, Property]:
    """Returns the properties of a file; of several with one name the last counts. Errors are added to `problems`."""
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        problems.append(f"{file}: the file can't be read: {error.strerror}")
        return {}
    except UnicodeDecodeError as error:
        bad = file.read_bytes()[: error.start].count(b"\n") + 1
        problems.append(f"{file}: line {bad}: is no UTF-8 text")
        return {}
    found = dict[str, Property]()
    for number, logical in _logical_lines(text):
        try:
            name, value = _split(logical)
        except ValueError as error:
            problems.append(f"{file}: line {number}: {error}")
            continue
        found[name] = Property(name, value.strip(), file, number)
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Returns lines without comments, joined where they end in a backslash, each with the number of its first line."""
    found, begun, number = list[tuple[int, str]](), "", 0
    for at, line in enumerate(re.split(r"\r\n|\r|\n", text.removeprefix("\ufeff")), 1):
        line = line.lstrip(" \t\f")
        if not begun:
            if not line or line[0] in "#!":
                continue
            number = at
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
            continue
        found.append((number, begun + line))
        begun = ""
    return [*found, (number, begun)] if begun else found


def _split(line: str) -> tuple[str, str]:
    """Returns name and value. Raises ValueError."""
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    separator = _SEPARATOR.match(line, at)
    return _unescaped(line[:at]), _unescaped(line[separator.end() :] if separator else "")


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        sign = found[1]
        if not sign.startswith("u"):
            return _ESCAPES.get(sign, sign)
        if len(sign) < 5:
            raise ValueError("a backslash and u should have four hexadecimal digits after them")
        return chr(int(sign[1:], 16))

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)


class Properties:
    """The properties of a destination: its own, else those of the file for all; with placeholders replaced, which may
    also name `env`. A property that is requested counts as taken."""

    def __init__(
        self, own: Mapping[str, Property], common: Mapping[str, Property], env: Mapping[str, str], problems: list[str]
    ) -> None:
        self.all = {**common, **own}
        self._env, self._problems = env, problems
        self.taken = set[str]()

    def get(self, name: str) -> Property | None:
        """Returns the property with its value; None if it is missing or empty."""
        self.taken.add(name)
        given = self.all.get(name)
        if given is None or not given.value:
            return None
        try:
            value = self._replaced(given.value)
        except ValueError as error:
            self._problems.append(given.problem(str(error)))
            return None
        return Property(name, value, given.file, given.line) if value else None

    def text(self, name: str, default: str = "") -> str:
        """Returns only the value."""
        given = self.get(name)
        return given.value if given is not None else default

    def _replaced(self, value: str) -> str:
        """Replaces placeholders, the innermost first, because a default may be a placeholder itself. Raises
        ValueError."""
        for _ in range(_DEEPEST):
            value, count = _INNERMOST.subn(self._resolved, value)
            if not count:
                return value.strip()
        raise ValueError("its placeholders lead back to themselves")

    def _resolved(self, found: re.Match[str]) -> str:
        name, colon, default = found[1].partition(":")
        self.taken.add(name)
        if name in self.all:
            return self.all[name].value
        if name in self._env:
            return self._env[name]
        if colon:
            return default
        raise ValueError(f"${{{name}}} is neither a property nor a variable of the environment, and has no default")
