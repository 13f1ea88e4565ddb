"""Adapters by their names in the configuration. Each is imported when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from headrace.errors import Refusal
from headrace.ports.format import FormatAdapter
from headrace.ports.inspection import SourceAdapter
from headrace.ports.lock_service import ClusterAdapter
from headrace.ports.parking import ParkingAdapter
from headrace.ports.sink import SinkAdapter
from headrace.ports.state import StateAdapter
from headrace.settings.adapters import ClusterSettings, MessageSettings, ParkingSettings, SinkSettings
from headrace.settings.daemon import StateSettings
from headrace_common.section import Section

GROUP = "headrace.adapters"
"""The group of entry points by which other distributions provide adapters. An entry's name is the kind and the name of
an adapter, as "sink.pulsar"; its object is the adapter's class."""
KINDS: dict[str, tuple[type, type[Section]]] = {
    "sink": (SinkAdapter, SinkSettings),
    "message": (FormatAdapter, MessageSettings),
    "parking": (ParkingAdapter, ParkingSettings),
    "cluster": (ClusterAdapter, ClusterSettings),
    "state": (StateAdapter, StateSettings),
}
"""By kind: the base class of its adapters, and that of their sections."""


class NoAdapter(Refusal, LookupError):
    """No adapter of this name is installed, or the one that has it can't be used."""


def outside() -> list[EntryPoint]:
    """Returns the adapters of other installed distributions, without importing them."""
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def origin(entry: EntryPoint) -> str:
    """Returns name and version of the distribution that provides an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"


class Registry:
    """Finds adapters. `adapters` has `module:class` of each adapter, by kind (source, sink, message, parking, cluster,
    state) and name. With `outside`, those of other distributions are found too. Every method raises NoAdapter for a
    name that is not registered, or whose adapter can't be used. It is also the `Sections` that the configuration is
    read with."""

    def __init__(self, adapters: Mapping[str, Mapping[str, str]], *, outside: bool = False) -> None:
        self.adapters = adapters
        self._with_outside = outside
        self._made: dict[tuple[str, str], Any] = {}

    @cached_property
    def _outside(self) -> dict[str, list[EntryPoint]]:
        """Returns other distributions' adapters, by the name of the entry point."""
        found = dict[str, list[EntryPoint]]()
        for entry in outside() if self._with_outside else ():
            found.setdefault(entry.name, []).append(entry)
        return found

    def names(self, kind: str) -> Sequence[str]:
        others = [name.removeprefix(f"{kind}.") for name in self._outside if name.startswith(f"{kind}.")]
        return [*dict.fromkeys([*self.adapters[kind], *others])]

    def _find(self, kind: str, name: str) -> Any:
        made = self._made.get((kind, name))
        if made is None:
            made = self._made[kind, name] = self._make(kind, name)
        return made

    def _make(self, kind: str, name: str) -> Any:
        ours, theirs = self.adapters[kind].get(name), self._outside.get(f"{kind}.{name}", [])
        if len(owners := [*(["headrace"] if ours else []), *map(origin, theirs)]) > 1:
            raise NoAdapter(
                f"there are several of {kind} {name!r}: {' and '.join(owners)} have one each",
                remedy="leave one of these packages, and take the others out: pip uninstall PACKAGE",
            )
        if ours is not None:
            module, _, attribute = ours.partition(":")
            return getattr(importlib.import_module(module), attribute)()
        if not theirs:
            raise NoAdapter(f"there is no {kind} {name!r}; there are {', '.join(self.names(kind))}")
        (entry,) = theirs
        try:
            made = entry.load()()
        except (Exception, SystemExit) as error:  # foreign code may raise anything
            why = f"{entry.value} can't be loaded ({type(error).__name__}: {error})"
            raise _unusable(kind, name, entry, why) from error
        base, section = KINDS[kind]
        if not isinstance(made, base):
            raise _unusable(kind, name, entry, f"{entry.value} is no {base.__name__}")
        if not (isinstance(own := getattr(made, "section", None), type) and issubclass(own, section)):
            raise _unusable(kind, name, entry, f"the section of {entry.value} is no {section.__name__}")
        return made

    def source_adapter(self, type: str = "mysql") -> SourceAdapter:
        """Returns the adapter of a kind of source."""
        return cast(SourceAdapter, self._find("source", type))

    def sink_adapter(self, type: str) -> SinkAdapter:
        """Returns the adapter of [sink] type."""
        return cast(SinkAdapter, self._find("sink", type))

    def format_adapter(self, format: str) -> FormatAdapter:
        """Returns the adapter of [message] format."""
        return cast(FormatAdapter, self._find("message", format))

    def parking_adapter(self, store: str) -> ParkingAdapter:
        """Returns the adapter of [parking] store."""
        return cast(ParkingAdapter, self._find("parking", store))

    def cluster_adapter(self, service: str) -> ClusterAdapter:
        """Returns the adapter of a lock service, by the name of its section."""
        return cast(ClusterAdapter, self._find("cluster", service))

    def state_adapter(self, store: str) -> StateAdapter:
        """Returns the adapter of [state] store."""
        return cast(StateAdapter, self._find("state", store))

    def section(self, kind: str, name: str) -> type[Section]:
        return cast(type[Section], self._find(kind, name).section)


def _unusable(kind: str, name: str, entry: EntryPoint, why: str) -> NoAdapter:
    return NoAdapter(
        f"{kind} {name!r} of {origin(entry)} can't be used: {why}",
        remedy="install a version of that package which fits, and what it needs",
    )
