"""References in configuration files: `${NAME}` and `${file:/path}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Expander:
    """Puts the environment's and files' values in place of `${NAME}` and `${file:/path}`; `$${` stands for `${`.

    What it can't resolve it reports with `report(key, sentence)`; a value that it read is never part of a sentence.
    """

    def __init__(self, env: Mapping[str, str], report: Callable[[str, str], None]) -> None:
        self._env = env
        self._report = report

    def expand(self, value: Any, key: str = "") -> Any:
        """The value with every string in it expanded, at any depth."""
        if isinstance(value, str):
            if "\0" in value:
                self._report(key, "should have no NUL character")
                return ""
            return _REFERENCE.sub(lambda found: self._resolve(found, key), value)
        if isinstance(value, dict):
            return {name: self.expand(item, f"{key}.{name}" if key else name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.expand(item, f"{key}[{index}]") for index, item in enumerate(value)]
        return value

    def _resolve(self, found: re.Match[str], key: str) -> str:
        if found[1] is None:
            return "${"
        if not found[2]:
            self._report(key, "`${` has no closing `}` (write `$${` for a plain `${`)")
        elif found[1].startswith("file:"):
            return self._read(found[1].removeprefix("file:"), key)
        elif not _NAME.fullmatch(found[1]):
            self._report(key, "`${...}` should hold the name of an environment variable or file:/path")
        elif found[1] not in self._env:
            self._report(key, f"the environment variable {found[1]} is not set")
        else:
            return self._env[found[1]]
        return ""

    def _read(self, name: str, key: str) -> str:
        path = Path(name)
        if not path.is_absolute():
            self._report(key, f"the path in ${{file:{name}}} should be absolute")
            return ""
        try:
            if path.exists() and not path.is_file():  # reading a pipe might never end
                self._report(key, f"{path} is no regular file")
                return ""
            return path.read_text("utf-8").rstrip("\r\n")
        except OSError as error:
            self._report(key, f"the file {path} can't be read: {error.strerror}")
        except UnicodeDecodeError:
            self._report(key, f"the file {path} is not UTF-8 text")
        return ""
