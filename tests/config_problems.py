"""Problems of a configuration file, as the consumers tell them, taken apart by key."""

from __future__ import annotations

import re
from pathlib import Path

from headrace_documents.errors import SettingsError


def by_key(error: SettingsError, path: Path) -> dict[str, str]:
    """Returns the sentences by key; "" for what is wrong with the file as a whole."""
    found = {}
    for problem in error.problems:
        assert problem.startswith(f"{path}: ")
        parts = re.fullmatch(r"(?:([a-z_.\[\]0-9]+): )?(.*)", problem.removeprefix(f"{path}: "), re.DOTALL)
        assert parts is not None
        found[parts[1] or ""] = parts[2]
    return found
