"""The values of ${NAME} in a configuration: the environment, and files as in EnvironmentFile= of systemd."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from headrace.errors import ConfigError

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def environment(files: Iterable[Path]) -> dict[str, str]:
    """Returns the environment with the values of the files; a later file has precedence. Raises ConfigError."""
    found = dict(os.environ)
    problems: list[str] = []
    for file in files:
        found |= _read(file, problems)
    if problems:
        raise ConfigError(problems)
    return found


def _read(file: Path, problems: list[str]) -> dict[str, str]:
    """Reads a file. Errors never show the values: they are secrets."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        problems.append(f"{file}: the file of --env-file can't be read: {why}")
        return {}
    found = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line[0] in "#;":
            continue
        if match := _LINE.fullmatch(line):
            name, value = match.groups()
            found[name] = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
        else:
            problems.append(f"{file}: line {number}: should be NAME=value")
    return found
