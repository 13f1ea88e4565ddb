"""The message formats by name; a new one is a file and a line here."""

from __future__ import annotations

from headrace.formats.base import Format
from headrace.formats.canal import CanalFormat

FORMATS: dict[str, type[Format]] = {"canal": CanalFormat}
