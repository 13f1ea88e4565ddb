"""Which tables are captured, and where their messages go."""

from __future__ import annotations

from functools import lru_cache

from headrace.settings import DestinationSettings

OWN_SCHEMA = "headrace"
"""headrace's own tables live here and are never published, whatever the filter says."""


class Routing:
    """The rules of one destination, compiled once."""

    def __init__(self, settings: DestinationSettings) -> None:
        self._include = settings.filter.include_patterns
        self._exclude = settings.filter.exclude_patterns
        self.topic, self.partition = settings.route.topic, settings.route.partition
        self.captures = lru_cache(maxsize=10_000)(self._captures)

    def _captures(self, schema: str, table: str) -> bool:
        """Whether rows of the table are published."""
        if schema == OWN_SCHEMA:
            return False
        name = f"{schema}.{table}"
        if self._include and not any(pattern.fullmatch(name) for pattern in self._include):
            return False
        return not any(pattern.fullmatch(name) for pattern in self._exclude)
