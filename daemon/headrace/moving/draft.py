"""A configuration that import makes: checked as the daemon reads it before anything is written."""

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, Refusal
from headrace.settings.destination import Settings

Check = Callable[[Path, dict[str, str]], Settings]
"""Reads a headrace.toml with an environment, as the daemon does. Raises ConfigError."""
_WIDTH = 100
_ORDER = ("source", "heartbeat", "filter", "message", "message.debezium", "route", "queue", "parking", "sink")


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference in the file: `${...}`."""

    text: str


@dataclass(slots=True)
class Entry:
    """A key's value, its origin (for errors), and the comment above it in the file."""

    value: Any
    origin: str = ""
    comment: str = ""


@dataclass(slots=True)
class Draft:
    """One file of the configuration. `tables` are arrays of tables, such as [[filter.mask]]; `notes` are comments at
    its end."""

    name: str
    """The destination's name; "" for headrace.toml."""
    origin: str
    """The file that it is made from."""
    sections: dict[str, dict[str, Entry]] = field(default_factory=dict)
    tables: list[tuple[str, dict[str, Entry]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    """Texts of the folder `secrets`, by name."""
    variables: set[str] = field(default_factory=set)
    """Names of environment variables that it refers to."""

    @property
    def file(self) -> Path:
        """Returns the path relative to the folder of headrace.toml."""
        return Path("destinations", f"{self.name}.toml") if self.name else Path("headrace.toml")

    def set(self, key: str, value: Any, origin: str = "", comment: str = "") -> None:
        """Sets a key, written as `section.key`."""
        section, _, name = key.rpartition(".")
        self.sections.setdefault(section, {})[name] = Entry(value, origin, comment)

    def get(self, key: str) -> Any:
        """Returns the value of a key; None if it has none."""
        section, _, name = key.rpartition(".")
        entry = self.sections.get(section, {}).get(name)
        return entry.value if entry is not None else None

    def drop(self, key: str) -> None:
        """Removes a key."""
        section, _, name = key.rpartition(".")
        self.sections.get(section, {}).pop(name, None)

    def secret(self, name: str, text: str) -> Reference:
        """Keeps a secret for the folder `secrets`, and returns a reference to it."""
        self.secrets[name] = text
        return Reference(f"${{credential:{name}}}")

    def origin_of(self, key: str) -> str:
        """Returns where an error of a key can be fixed; a key may have further parts, as `filter.mask[0].columns`."""
        section, _, name = key.rpartition(".")
        entry = self.sections.get(section, {}).get(name)
        for table, entries in self.tables:
            if entry is None and key.startswith(f"{table}["):
                entry = entries.get(name)
        return entry.origin if entry is not None and entry.origin else self.origin

    def text(self) -> str:
        """Returns the file's text."""
        lines = [f"# Made by headrace import from {self.origin}."]
        for section in sorted(self.sections, key=lambda one: _ORDER.index(one) if one in _ORDER else -1):
            if self.sections[section]:
                lines += ["", f"[{section}]", *_lines(self.sections[section])]
            for table, entries in self.tables:
                if table.rpartition(".")[0] == section:
                    lines += ["", f"[[{table}]]", *_lines(entries)]
        if self.notes:
            lines += ["", "# What has no counterpart here, and why (docs/moving-properties.md has all):", "#"]
            lines += [line for note in self.notes for line in _comment(note, "# - ", "#   ")]
        return "\n".join(lines) + "\n"


def _lines(entries: dict[str, Entry]) -> list[str]:
    found = []
    for key, entry in entries.items():
        found += _comment(entry.comment) if entry.comment else []
        found.append(f"{key} = {_toml(entry.value)}")
    return found


def _comment(text: str, first: str = "# ", rest: str = "# ") -> list[str]:
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return textwrap.wrap(
        plain, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Reference):
        return f'"{value.text}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    text = str(value).replace("${", "$${")
    if "'" not in text and text.isprintable():
        return f"'{text}'" if "\\" in text or '"' in text else f'"{text}"'
    signs = (
        sign if sign.isprintable() and sign not in '"\\' else f"\\{sign}" if sign in '"\\' else f"\\U{ord(sign):08x}"
        for sign in text
    )
    return f'"{"".join(signs)}"'


def checked(drafts: Iterable[Draft], check: Check) -> tuple[Settings | None, list[str]]:
    """Returns the configuration as a whole, or its errors, a sentence each with its origin. Unset environment variables
    count as empty. No file stays on the disk."""
    drafts = list(drafts)
    with tempfile.TemporaryDirectory(prefix="headrace-import-") as name:
        folder = Path(name)
        (folder / "destinations").mkdir()
        env = {variable: "" for draft in drafts for variable in draft.variables} | dict(os.environ)
        _write(folder, drafts)
        try:
            return check(folder / "headrace.toml", env), []
        except ConfigError as error:
            return None, [_reported(problem, folder, drafts) for problem in error.problems]


def _reported(problem: str, folder: Path, drafts: list[Draft]) -> str:
    """Returns a problem of the configuration as one of the file that it was made from."""
    for draft in drafts:
        file = f"{folder / draft.file}: "
        if problem.startswith(file):
            key, _, sentence = problem.removeprefix(file).partition(": ")
            return f"{draft.origin_of(key)}: {sentence} ({key})" if sentence else f"{draft.origin}: {key}"
    return problem.replace(f"{folder}{os.sep}", "")


def write(folder: Path, drafts: Iterable[Draft]) -> list[Path]:
    """Writes the files, none of which may exist; returns them. Raises Refusal, and then nothing is written."""
    drafts = list(drafts)
    wanted = [folder / draft.file for draft in drafts]
    wanted += [folder / "secrets" / name for draft in drafts for name in draft.secrets]
    there = [file for file in wanted if os.path.lexists(file)]
    if there:
        raise Refusal(
            f"{', '.join(map(str, there))}: there already, so nothing is written",
            remedy="give another folder with --out, or move it away",
        )
    try:
        return _write(folder, drafts)
    except OSError as error:
        raise Refusal(f"{error.filename}: can't be written: {error.strerror}") from error


def _write(folder: Path, drafts: list[Draft]) -> list[Path]:
    files = [(folder / draft.file, draft.text(), 0o666) for draft in drafts]
    files += [(folder / "secrets" / name, text, 0o600) for one in drafts for name, text in one.secrets.items()]
    written = list[Path]()
    try:
        for file, text, mode in files:
            file.parent.mkdir(mode=0o700 if mode == 0o600 else 0o777, parents=True, exist_ok=True)
            with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as out:
                written.append(file)
                out.write(text)
    except OSError:
        for file in written:
            file.unlink(missing_ok=True)
        raise
    return [file for file, _, _ in files]
