"""References in configuration files: `${NAME}`, `${file:/path}` and `${credential:NAME}`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
UNIT_PREFIX = "headrace_"
"""What systemd puts before the names of the files in the folder of LoadCredential=headrace:FOLDER."""


class Expander:
    """Replaces references by values of the environment, of files and of credentials; `$${` is a literal `${`.

    A credential is loaded by systemd for the service. A command that an operator starts has none, and reads the same
    name from the folder `secrets` instead, from which the service's unit loads the credentials.

    References that it can't resolve are reported with `report(key, sentence)`; a value that was read is never part of a
    sentence."""

    def __init__(self, env: Mapping[str, str], report: Callable[[str, str], None], secrets: Path | None = None) -> None:
        self._env, self._report, self._secrets = env, report, secrets

    def expand(self, value: Any, key: str = "") -> Any:
        """Returns the value with every string in it expanded, at any depth."""
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
            return self._read_absolute(found[1].removeprefix("file:"), key)
        elif found[1].startswith("credential:"):
            return self._read_credential(found[1].removeprefix("credential:"), key)
        elif not _NAME.fullmatch(found[1]):
            self._report(key, "`${...}` should hold the name of an environment variable, file:/path or credential:NAME")
        elif found[1] not in self._env:
            self._report(key, f"the environment variable {found[1]} is not set")
        else:
            return self._env[found[1]]
        return ""

    def _read_absolute(self, name: str, key: str) -> str:
        if Path(name).is_absolute():
            return self._read(Path(name), key)
        self._report(key, f"the path in ${{file:{name}}} should be absolute")
        return ""

    def _read_credential(self, name: str, key: str) -> str:
        if not _CREDENTIAL.fullmatch(name):
            self._report(key, "`${credential:...}` should hold a name of letters, digits, dots, dashes and underscores")
            return ""
        places = [self._secrets / name] if self._secrets is not None else []
        if loaded := self._env.get("CREDENTIALS_DIRECTORY"):
            places = [Path(loaded, name), Path(loaded, UNIT_PREFIX + name), *places]
        for place in places:
            if os.path.lexists(place):
                return self._read(place, key)
        where = ", ".join(map(str, places)) or "there is no CREDENTIALS_DIRECTORY"
        self._report(key, f"there is no credential {name}: {where}")
        return ""

    def _read(self, path: Path, key: str) -> str:
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
