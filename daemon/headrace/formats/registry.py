"""The message formats by name; a new one is a file and a line here."""

from __future__ import annotations

from headrace.formats.base import Format
from headrace.formats.canal import CanalFormat
from headrace.settings import MessageSettings


def make_format(settings: MessageSettings) -> Format:
    """A new format as [message] says."""
    return CanalFormat()
