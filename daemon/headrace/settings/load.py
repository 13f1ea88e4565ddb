"""Reads the configuration: headrace.toml and the destinations beside it, checked as a whole, all problems at once."""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
from headrace.errors import ConfigError
from headrace.settings.checks import clashing, destination_problems, main_store_problems
from headrace.settings.daemon import DaemonSettings, HttpSettings, LogSettings, StateSettings, ZooKeeperSettings
from headrace.settings.destination import (
    DestinationSettings,
    HeartbeatSettings,
    MainSettings,
    QueueSettings,
    Settings,
    SourceSettings,
    StandbySettings,
)
from headrace.settings.message import DebeziumSettings, MessageSettings, Section
from headrace.settings.parking import FailedSettings
from headrace.settings.retries import RetrySettings
from headrace.settings.route import FilterSettings, MaskSettings, RouteSettings, WhereSettings
from headrace.settings.sinks import SINKS, JsonlSinkSettings, NullSinkSettings, SinkSettings, topic_names
from headrace.settings.values import (
    Expander,
    Start,
    StartAt,
    StartEarliest,
    StartGtid,
    StartLatest,
    StartTime,
    compile_filter,
    split_patterns,
)

__all__ = [
    "DaemonSettings",
    "DebeziumSettings",
    "DestinationSettings",
    "FailedSettings",
    "FilterSettings",
    "HeartbeatSettings",
    "HttpSettings",
    "JsonlSinkSettings",
    "KafkaSinkSettings",
    "LogSettings",
    "MaskSettings",
    "MessageSettings",
    "NullSinkSettings",
    "QueueSettings",
    "RabbitMqSinkSettings",
    "RetrySettings",
    "RocketMqSinkSettings",
    "RouteSettings",
    "Settings",
    "SinkSettings",
    "SourceSettings",
    "StandbySettings",
    "Start",
    "StartAt",
    "StartEarliest",
    "StartGtid",
    "StartLatest",
    "StartTime",
    "StateSettings",
    "WhereSettings",
    "ZooKeeperSettings",
    "clashing",
    "compile_filter",
    "derive_server_id",
    "destination_files",
    "load",
    "load_destination",
    "load_main",
    "split_patterns",
    "topic_names",
]

_DESTINATION_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_Model = TypeVar("_Model", bound=Section)


def derive_server_id(node: str, destination: str) -> int:
    """A replica's server id that stays the same for a node and a destination, from 2^31 to 2^32 - 1.

    The upper half keeps clear of the small numbers that people give to their servers.
    """
    digest = hashlib.sha256(f"{node}\0{destination}".encode()).digest()
    return (1 << 31) | (int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF)


def load(path: Path, env: Mapping[str, str]) -> Settings:
    """Reads headrace.toml at `path` and its destinations; `env` is what `${NAME}` refers to.

    In the result `daemon.destinations` is the real folder, each `route.topic` is filled in, and each
    `source.server_id` is the one to use. Raises ConfigError with every problem of every file.
    """
    problems: list[str] = []
    main = _read_model(path, MainSettings, env, problems)
    # A broken headrace.toml mostly still names the folder, so that the destinations' problems show in the same run.
    daemon = main.daemon if main else DaemonSettings()
    folder = path.parent / daemon.destinations
    files = _destination_files(folder, path, report_missing=main is not None, problems=problems)
    found = [_read_destination(file, env, daemon.node, problems) for file in files]
    destinations = {item.name: item for item in found if item is not None}
    problems += clashing(destinations.values(), folder).values()
    if main is not None:
        problems += main_store_problems(path, main.state, main.zookeeper is not None)
        for one in destinations.values():
            problems += destination_problems(one, folder, shared=main.zookeeper is not None)
    if problems or main is None:
        raise ConfigError(problems)
    return _complete(path, main, destinations)


def load_main(path: Path, env: Mapping[str, str]) -> Settings:
    """headrace.toml at `path` alone, without destinations. Raises ConfigError with every problem."""
    problems: list[str] = []
    main = _read_model(path, MainSettings, env, problems)
    if main is not None:
        problems += main_store_problems(path, main.state, main.zookeeper is not None)
    if problems or main is None:
        raise ConfigError(problems)
    return _complete(path, main, {})


def load_destination(file: Path, env: Mapping[str, str], node: str, *, shared: bool) -> DestinationSettings:
    """One destination, as load() gives it; `shared` says whether there is a section [zookeeper]. Raises ConfigError
    with every problem of the file."""
    problems: list[str] = []
    destination = _read_destination(file, env, node, problems)
    if destination is not None:
        problems += destination_problems(destination, file.parent, shared=shared)
    if problems or destination is None:
        raise ConfigError(problems)
    return destination


def destination_files(folder: Path) -> list[Path]:
    """The destinations' files, sorted by name. Raises OSError."""
    return sorted(file for file in folder.iterdir() if file.suffix == ".toml" and not file.name.startswith("."))


def _complete(path: Path, main: MainSettings, destinations: dict[str, DestinationSettings]) -> Settings:
    daemon = main.daemon.model_copy(update={"destinations": path.parent / main.daemon.destinations})
    return Settings(
        daemon=daemon,
        state=main.state,
        zookeeper=main.zookeeper,
        http=main.http,
        log=main.log,
        file=path,
        destinations=destinations,
    )


def _destination_files(folder: Path, main: Path, *, report_missing: bool, problems: list[str]) -> list[Path]:
    try:
        files = destination_files(folder)
    except OSError as error:
        if report_missing:
            problems.append(f"{main}: daemon.destinations: the folder {folder} can't be read: {error.strerror}")
        return []
    if not files and report_missing:
        problems.append(f"{main}: daemon.destinations: no destination: the folder {folder} has no .toml file")
    return files


def _read_destination(file: Path, env: Mapping[str, str], node: str, problems: list[str]) -> DestinationSettings | None:
    name = file.stem
    if not _DESTINATION_NAME.fullmatch(name):
        problems.append(
            f"{file}: the file's name: a destination's name should begin with a lower-case letter or a digit, and go "
            "on with those, dots, dashes and underscores"
        )
    destination = _read_model(file, DestinationSettings, env, problems, name=name)
    if destination is None:
        return None
    source, route = destination.source, destination.route
    if source.tls_ca and source.tls == "disabled":
        problems.append(f'{file}: source.tls_ca: has no meaning with tls = "disabled"')
    elif source.tls_ca and not source.tls_ca.is_file():
        problems.append(f"{file}: source.tls_ca: there is no file {source.tls_ca}")
    if not route.topic:
        if isinstance(destination.sink, KafkaSinkSettings | RocketMqSinkSettings):
            problems.append(f"{file}: route.topic: is missing; a {destination.sink.type} sink needs it")
        route = route.model_copy(update={"topic": name})
    if not source.server_id:
        source = source.model_copy(update={"server_id": derive_server_id(node, name)})
    return destination.model_copy(update={"source": source, "route": route})


def _read_model(
    file: Path, model: type[_Model], env: Mapping[str, str], problems: list[str], **more: Any
) -> _Model | None:
    """One file as a model; None when it has problems, which are added to `problems`."""
    raw = _read_toml(file, problems)
    if raw is None:
        return None
    before = len(problems)
    bad_keys: set[str] = set()

    def report(key: str, sentence: str) -> None:
        bad_keys.add(key)
        problems.append(f"{file}: {key}: {sentence}")

    expanded = Expander(env, report).expand(raw)
    for key in more:
        if key in expanded:
            report(key, "unknown key")
    try:
        result = model.model_validate({**expanded, **more})
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            key, sentence = _sentence(detail, model)
            if key not in bad_keys:  # its value is missing, so what the model says of it is noise
                problems.append(f"{file}: {key}: {sentence}")
        return None
    return result if len(problems) == before else None


def _read_toml(file: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as error:
        problems.append(f"{file}: the file can't be read: {error.strerror}")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        problems.append(f"{file}: line {line}: not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{file}: not TOML: {error}")
    except RecursionError:
        problems.append(f"{file}: not TOML: nested too deep")
    return None


def _sentence(detail: ErrorDetails, model: type[Section]) -> tuple[str, str]:
    """Key and sentence for people, out of what pydantic says."""
    loc = list(detail["loc"])
    if len(loc) > 2 and loc[0] == "sink" and loc[1] in SINKS:
        section: type[Section] | None = SINKS[str(loc.pop(1))]
    else:
        section = model
        for part in loc[:-1]:
            field = section.model_fields.get(str(part)) if section else None
            annotation = field.annotation if field else None
            section = annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None
    key = str(loc[0]) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc[1:])
    kind = detail["type"]
    if kind == "extra_forbidden":
        names = [name for name in section.model_fields if name != "name"] if section else []
        near = difflib.get_close_matches(str(loc[-1]), names, 1)
        return key, f"unknown key; did you mean {near[0]}?" if near else "unknown key"
    if kind == "missing":
        return key, "the section is missing" if len(loc) == 1 else "is missing"
    if kind == "union_tag_not_found":
        return f"{key}.type", f"is missing; one of {', '.join(SINKS)}"
    if kind == "union_tag_invalid":
        return f"{key}.type", f"should be one of {', '.join(SINKS)}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return key, f"should be a section, [{key}]"
    return key, detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
