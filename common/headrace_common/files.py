"""Reads configuration files: TOML into sections, with references filled in and all errors reported at once."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace_common.references import Expander
from headrace_common.section import Section

ModelT = TypeVar("ModelT", bound=Section)
ReportProblem = Callable[[str, str], object]
"""Takes a problem: the key, and a sentence."""
Siblings = Callable[[str], str]
"""Returns why a section does not know a key; "" if no other choice of it would."""


def read_toml(file: Path, problems: list[str]) -> dict[str, Any] | None:
    """Returns the file's tables; None if it can't be read, and then `problems` says why."""
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as error:
        problems.append(f"{file}: the file can't be read: {error.strerror}")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problems.append(f"{file}: line {line}: not UTF-8 text")
    except ValueError as error:  # errors of tomllib, and a number of thousands of digits
        problems.append(f"{file}: not TOML: {error}")
    except RecursionError:
        problems.append(f"{file}: not TOML: nested too deep")
    return None


def expanded(
    file: Path, raw: dict[str, Any], env: Mapping[str, str], problems: list[str], secrets: Path
) -> tuple[dict[str, Any], ReportProblem, ReportProblem]:
    """Returns `raw` with its references filled in, a function for problems of a key, and one for problems of a value:
    the latter ignores a key whose reference could not be filled in. `secrets` is the folder of credentials for a
    process without credentials of systemd."""
    bad_keys: set[str] = set()

    def report(key: str, sentence: str) -> None:
        bad_keys.add(key)
        problems.append(f"{file}: {key}: {sentence}")

    def report_value(key: str, sentence: str) -> None:
        if key not in bad_keys:  # its value is missing, so the model's errors about it are noise
            problems.append(f"{file}: {key}: {sentence}" if key else f"{file}: {sentence}")

    try:
        return Expander(env, report, secrets).expand(raw), report, report_value
    except RecursionError:
        problems.append(f"{file}: nested too deep")
        return {}, report, lambda _, __: None


def secrets_beside(file: Path) -> Path:
    """Returns the folder of the secrets for `${credential:NAME}` in a configuration file."""
    return file.absolute().parent / "secrets"


def read_section(
    file: Path, model: type[ModelT], env: Mapping[str, str], problems: list[str], secrets: Path | None = None
) -> ModelT | None:
    """Returns the whole file as a model; None if something is wrong, and then `problems` says what. `secrets` is the
    folder of the credentials, by default `secrets` next to the file."""
    raw, before = read_toml(file, problems), len(problems)
    if raw is None:
        return None
    values, _, report_value = expanded(file, raw, env, problems, secrets or secrets_beside(file))
    made = validated(values, model, report_value)
    return made if len(problems) == before else None


def validated(
    raw: dict[str, Any], model: type[ModelT], report_value: ReportProblem, why: Siblings | None = None
) -> ModelT | None:
    """Returns `raw` as a model; None if it has problems, all of which are reported."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            report_value(*_sentence(detail, model, why))
        return None


def _sentence(detail: ErrorDetails, model: type[Section], why: Siblings | None) -> tuple[str, str]:
    """Returns key and sentence for an operator, from pydantic's error."""
    loc = list(detail["loc"])
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
    section: type[BaseModel] | None = model
    for part in loc[:-1]:
        section = _section_of(section, part)
    match detail["type"]:
        case "extra_forbidden":
            if why is not None and len(loc) == 1 and (sentence := why(key)):
                return key, sentence
            names = [name for name in section.model_fields if name not in ("name", "cluster")] if section else []
            near = difflib.get_close_matches(str(loc[-1]), names, 1)
            return key, f"unknown key; did you mean {near[0]}?" if near else "unknown key"
        case "missing":
            return key, "the section is missing" if _section_of(section, loc[-1]) else "is missing"
        case "model_type" | "model_attributes_type" | "dict_type":
            return key, f"should be a section, [{key}]"
        case "string_too_short":
            return key, "should not be empty"
        case "list_type" | "tuple_type":
            return key, "should be a list"
        case "path_type":
            return key, "should be a path"
    return key, detail["msg"].removeprefix("Value error, ").replace("Input should", "should")


def _section_of(section: type[BaseModel] | None, part: int | str) -> type[BaseModel] | None:
    """Returns the model of a field that is a section; None for any other."""
    field = section.model_fields.get(str(part)) if section is not None else None
    annotation = field.annotation if field is not None else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
