"""What a source says of itself, as far as reading its binlog rests on it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.destination import SourceSettings


@dataclass(frozen=True, slots=True)
class Server:
    """`settings` name the very server that answers, and the server id under which it knows us."""

    settings: SourceSettings
    version: str
    mariadb: bool
    gtid_mode: bool
    lower_case_table_names: int
