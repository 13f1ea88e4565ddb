"""How the consumers' TOML files are read: references filled in, unknown keys refused, everything wrong told at once."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from headrace_common.references import Expander
from headrace_documents.errors import Problem, SettingsError


class Model(BaseModel):
    """The base of all sections: a key that is not known is an error, and so is a value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


M = TypeVar("M", bound=Model)


def absolute(path: str) -> str:
    """The path without the working directory in it: Spark's workers run in another one. Empty stays empty."""
    return str(Path(path).absolute()) if path else path


def load_file(path: Path, model: type[M]) -> M:
    """Reads a config file, with `${VAR}` and `${file:/path}` filled in (`$${` stands for a plain `${`).

    Raises SettingsError with everything that is wrong.
    """
    file = str(path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError([Problem(file, "", f"can't be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([Problem(file, "", f"is not TOML: {error}")]) from None
    problems: list[Problem] = []
    expanded = Expander(os.environ, lambda key, text: problems.append(Problem(file, key, text))).expand(raw)
    failed = {problem.key for problem in problems}
    try:
        settings = model.model_validate(expanded)
    except ValidationError as error:
        for item in error.errors(include_url=False, include_input=False):
            parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
            key = "".join(parts).removeprefix(".")
            if key not in failed:
                problems.append(Problem(file, key, _sentence(item["type"], item["msg"])))
        raise SettingsError(problems) from None
    if problems:
        raise SettingsError(problems)
    return settings


def _sentence(kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return "there is no such key"
    if kind == "missing":
        return "is required and is not there"
    return text.removeprefix("Value error, ")
