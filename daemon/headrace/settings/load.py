"""Reads the configuration: headrace.toml and its destinations, checked as a whole; all problems are reported at
once."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.settings.adapters import MORE, Sections, SinkSettings
from headrace.settings.checks import clashing, destination_problems, store_problems
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, MainSettings, Settings
from headrace_common.files import ModelT, ReportProblem, Siblings, expanded, read_toml, secrets_beside, validated
from headrace_common.section import Section

DESTINATION_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


_CHOICES = {"sink": ("type", ""), "message": ("format", "canal"), "parking": ("store", "state")}
"""The sections of a destination's file whose keys depend on one of them: that key, and its default, unless the sink has
another one. A section's name is also the kind of the adapters."""


def derive_server_id(node: str, destination: str) -> int:
    """Returns a replica's server id that is always the same for a node and a destination, from 2^31 to 2^32 - 1.

    The upper half avoids the small numbers that people give to their servers."""
    digest = hashlib.sha256(f"{node}\0{destination}".encode()).digest()
    return (1 << 31) | (int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF)


class Loader:
    """Reads files into settings. `sections` are those of adapters; `env` has the values for `${NAME}`."""

    def __init__(self, sections: Sections, env: Mapping[str, str]) -> None:
        self._sections, self._env = sections, env

    def load(self, path: Path) -> Settings:
        """Reads headrace.toml at `path` and its destinations.

        In the result `daemon.destinations` is the real folder, each `route.topic` is filled in, and each
        `source.server_id` is the one to use. Raises ConfigError with every problem of every file.
        """
        problems: list[str] = []
        main = self._read_main(path, problems)
        # A broken headrace.toml usually still names the folder, so that the destinations' problems are reported too.
        daemon = main.daemon if main else DaemonSettings()
        folder = path.parent / daemon.destinations
        files = _destination_files(folder, path, problems if main is not None else [])
        found = [self._read_destination(file, path, daemon.node, problems) for file in files]
        destinations = {item.name: item for item in found if item is not None}
        problems += clashing(destinations.values(), folder).values()
        if main is not None:
            for one in destinations.values():
                problems += destination_problems(one, folder, main.service, self._sections)
        return _complete(path, _sound(main, problems), destinations)

    def load_main(self, path: Path) -> Settings:
        """Reads headrace.toml at `path` alone, without destinations. Raises ConfigError with every problem."""
        problems: list[str] = []
        main = self._read_main(path, problems)
        return _complete(path, _sound(main, problems), {})

    def load_destination(self, file: Path, main: Path, node: str, service: str) -> DestinationSettings:
        """Reads one destination, as load() returns it; `main` is headrace.toml, `service` is the name of the cluster
        service, "" without one. Raises ConfigError with every problem of the file."""
        problems: list[str] = []
        destination = self._read_destination(file, main, node, problems)
        if destination is not None:
            problems += destination_problems(destination, file.parent, service, self._sections)
        return _sound(destination, problems)

    def make_destination(self, raw: dict[str, Any]) -> DestinationSettings:
        """Returns a destination made from a file's content, and its `name`; nothing is filled in. Raises
        ConfigError."""
        problems: list[str] = []
        made = self._model(raw, DestinationSettings, lambda key, sentence: problems.append(f"{key}: {sentence}"))
        return _sound(made, problems)

    # -- files ----------------------------------------------------------------------------------------------------

    def _read_main(self, path: Path, problems: list[str]) -> MainSettings | None:
        main = self._read(path, path, MainSettings, problems, ("cluster",))
        if main is not None:
            problems += [f"{path}: {one}" for one in store_problems(main.state, main.service, self._sections)]
        return main

    def _read_destination(self, file: Path, main: Path, node: str, problems: list[str]) -> DestinationSettings | None:
        name = file.stem
        if not DESTINATION_NAME.fullmatch(name):
            problems.append(
                f"{file}: the file's name: a destination's name should begin with a lower-case letter or a digit, and "
                "go on with those, dots, dashes and underscores"
            )
        destination = self._read(file, main, DestinationSettings, problems, ("name",), name=name)
        if destination is None:
            return None
        source, route = destination.source, destination.route
        if not route.topic:
            if destination.sink.capabilities.needs_topic:
                problems.append(f"{file}: route.topic: is missing; a {destination.sink.type} sink needs it")
            route = route.model_copy(update={"topic": name})
        if route.topic_prefix:
            route = route.model_copy(update={"topic": route.topic_prefix + route.topic})
            destination = destination.model_copy(
                update={"message": destination.message.with_topic_prefix(route.topic_prefix)}
            )
        if not source.server_id:
            source = source.model_copy(update={"server_id": derive_server_id(node, name)})
        return destination.model_copy(update={"source": source, "route": route})

    def _read(
        self, file: Path, main: Path, model: type[ModelT], problems: list[str], reserved: Sequence[str], **more: Any
    ) -> ModelT | None:
        """Returns one file as a model; None if it has problems, which are added to `problems`. `reserved` keys are
        ours, and secrets are next to `main`."""
        raw, before = read_toml(file, problems), len(problems)
        if raw is None:
            return None
        values, report, report_value = expanded(file, raw, self._env, problems, secrets_beside(main))
        for key in reserved:
            if values.pop(key, None) is not None:
                report(key, "unknown key")
        result = self._model({**values, **more}, model, report_value)
        return result if len(problems) == before else None

    # -- models ---------------------------------------------------------------------------------------------------

    def _model(self, raw: dict[str, Any], model: type[ModelT], report_value: ReportProblem) -> ModelT | None:
        """Returns `raw` as a model, its adapters' sections first; reports every problem."""
        raw, found = dict(raw), list[tuple[str, str]]()
        late: ReportProblem = lambda key, sentence: found.append((key, sentence))  # noqa: E731
        self._add_store(raw, late)
        if issubclass(model, MainSettings):
            self._add_cluster(raw, late)
        else:
            for section, (key, default) in _CHOICES.items():
                if section == "message" and isinstance(raw["sink"], SinkSettings):
                    default = raw["sink"].capabilities.message_format or default
                self._add_chosen(raw, section, key, default, late)
        # A chosen section that is wrong as a whole is reported when it is read itself.
        why = self._why_no_section(raw) if issubclass(model, MainSettings) else None
        made = validated(raw, model, lambda key, sentence: key in _CHOICES or report_value(key, sentence), why)
        for key, sentence in found:
            report_value(key, sentence)
        return made if not found else None

    def _add_cluster(self, raw: dict[str, Any], report_value: ReportProblem) -> None:
        """Moves the section of a cluster service to `cluster`."""
        names = [one for one in self._sections.names("cluster") if one in raw and one not in MainSettings.model_fields]
        for name in names:
            section = self._section(raw.pop(name), "cluster", name, name, report_value)
            if name == names[0] and section is not None:
                raw["cluster"] = section
        if len(names) > 1:
            report_value(names[1], f"there is a section [{names[0]}] already: destinations are shared by one service")

    def _why_no_section(self, raw: dict[str, Any]) -> Siblings:
        """Returns what to say about an unknown section of headrace.toml, unless it is a known one with a typing
        error."""
        names = [*MainSettings.model_fields, *self._sections.names("cluster")]

        def why(key: str) -> str:
            if not isinstance(raw.get(key), dict) or difflib.get_close_matches(key, names, 1):
                return ""
            return f"unknown section; lock services are {', '.join(self._sections.names('cluster'))}; {MORE}"

        return why

    def _add_store(self, raw: dict[str, Any], report_value: ReportProblem) -> None:
        """Adds the section of a state store, if that has its own keys."""
        given = raw.get("state")
        store = given.get("store") if isinstance(given, dict) else None
        if isinstance(store, str) and store in self._sections.names("state"):
            section = self._section(raw.pop("state"), "state", store, "state", report_value, key="store")
            if section is not None:
                raw["state"] = section

    def _add_chosen(
        self, raw: dict[str, Any], section: str, key: str, default: str, report_value: ReportProblem
    ) -> None:
        """Adds a section whose keys depend on `key`."""
        given, names = raw.get(section, {}), self._sections.names(section)
        made: Section | None = None
        if not isinstance(given, dict):
            report_value(section, f"should be a section, [{section}]")
        elif section not in raw and not default:
            report_value(section, "the section is missing")
        elif not (name := given.get(key, default)):
            report_value(f"{section}.{key}", f"is missing; one of {', '.join(names)}")
        elif name not in names:
            report_value(f"{section}.{key}", f"should be one of {', '.join(names)}; {MORE}")
        else:

            def why(unknown: str) -> str:
                """Returns why a key is unknown, if another choice would know it."""
                for one in names:
                    with suppress(LookupError):  # reported where that one is chosen
                        if unknown in self._sections.section(section, one).model_fields:
                            return f'has no meaning with {key} = "{name}"'
                return ""

            made = self._section(given, section, name, section, report_value, why, key=key)
        raw[section] = made

    def _section(
        self,
        raw: Any,
        kind: str,
        name: str,
        place: str,
        report_value: ReportProblem,
        why: Siblings | None = None,
        key: str = "",
    ) -> Section | None:
        """Returns one section of an adapter; `place` is its name in the file, `key` the one that chooses it."""
        if not isinstance(raw, dict):
            report_value(place, f"should be a section, [{place}]")
            return None
        try:
            model = self._sections.section(kind, name)
        except LookupError as error:
            report_value(f"{place}.{key}" if key else place, str(error))
            return None
        below: ReportProblem = lambda inner, sentence: report_value(f"{place}.{inner}" if inner else place, sentence)  # noqa: E731
        try:
            return validated(raw, model, below, why)
        except Exception as error:  # foreign code may raise anything
            report_value(
                place, f"can't be read by {model.__module__}.{model.__name__} ({type(error).__name__}: {error})"
            )
            return None


def destination_files(folder: Path) -> list[Path]:
    """Returns the destinations' files, sorted by name. Raises OSError."""
    return sorted(file for file in folder.iterdir() if file.suffix == ".toml" and not file.name.startswith("."))


def _sound(made: ModelT | None, problems: list[str]) -> ModelT:
    if problems or made is None:
        raise ConfigError(problems)
    return made


def _complete(path: Path, main: MainSettings, destinations: dict[str, DestinationSettings]) -> Settings:
    daemon = main.daemon.model_copy(update={"destinations": path.parent / main.daemon.destinations})
    return Settings(**{**dict(main), "daemon": daemon}, file=path, destinations=destinations)


def _destination_files(folder: Path, main: Path, problems: list[str]) -> list[Path]:
    try:
        files = destination_files(folder)
    except OSError as error:
        problems.append(f"{main}: daemon.destinations: the folder {folder} can't be read: {error.strerror}")
        return []
    if not files:
        problems.append(f"{main}: daemon.destinations: no destination: the folder {folder} has no .toml file")
    return files
