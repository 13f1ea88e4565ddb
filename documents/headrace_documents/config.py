"""How the consumers read their configuration files."""

from __future__ import annotations

import os
from pathlib import Path

from headrace_common.files import ModelT, read_section
from headrace_documents.errors import SettingsError


def absolute(path: Path | str | None) -> str:
    """Returns the path without the working directory in it, since Spark's workers run in another one; "" for none."""
    return str(Path(path).absolute()) if path else ""


def load_file(path: Path, model: type[ModelT]) -> ModelT:
    """Returns a configuration file as a model. Raises SettingsError with everything that is wrong."""
    problems: list[str] = []
    settings = read_section(path, model, os.environ, problems)
    if settings is None:
        raise SettingsError(problems)
    return settings
