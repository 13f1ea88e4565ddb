"""Adapters by the names that the configuration knows them by, each imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from headrace.ports.format import FormatAdapter
from headrace.ports.lock_service import ClusterAdapter
from headrace.ports.parking import ParkingAdapter
from headrace.ports.sink import SinkAdapter
from headrace.ports.state import StateAdapter
from headrace_common.section import Section


class Registry:
    """`adapters` has `module:class` of each adapter, by kind (sink, message, parking, cluster, state) and name. Every
    method raises LookupError for a name that is not registered. It is also the `Sections` that the configuration is
    read with."""

    def __init__(self, adapters: Mapping[str, Mapping[str, str]]) -> None:
        self.adapters = adapters
        self._made: dict[tuple[str, str], Any] = {}

    def names(self, kind: str) -> Sequence[str]:
        return [*self.adapters[kind]]

    def _find(self, kind: str, name: str) -> Any:
        made = self._made.get((kind, name))
        if made is None:
            known = self.adapters[kind]
            if name not in known:
                raise LookupError(f"there is no {kind} {name!r}; there are {', '.join(known)}")
            module, _, attribute = known[name].partition(":")
            made = self._made[kind, name] = getattr(importlib.import_module(module), attribute)()
        return made

    def sink_adapter(self, type: str) -> SinkAdapter:
        """The adapter of [sink] type."""
        return cast(SinkAdapter, self._find("sink", type))

    def format_adapter(self, format: str) -> FormatAdapter:
        """The adapter of [message] format."""
        return cast(FormatAdapter, self._find("message", format))

    def parking_adapter(self, store: str) -> ParkingAdapter:
        """The adapter of [parking] store."""
        return cast(ParkingAdapter, self._find("parking", store))

    def cluster_adapter(self, service: str) -> ClusterAdapter:
        """The adapter of a lock service, by the name of its section."""
        return cast(ClusterAdapter, self._find("cluster", service))

    def state_adapter(self, store: str) -> StateAdapter:
        """The adapter of [state] store."""
        return cast(StateAdapter, self._find("state", store))

    def section(self, kind: str, name: str) -> type[Section]:
        return cast(type[Section], self._find(kind, name).section)
