"""Reads layouts from information_schema and proves from the binlog from where on they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.model import Position
from headrace.mysql.schema_history import Reading
from headrace.settings import SourceSettings


async def read_schemas(
    source: SourceSettings,
    position: Position,
    captures: Callable[[str, str], bool],
    *,
    mariadb: bool,
    version: str,
    lower_case_table_names: int,
    gtid_mode: bool,
    server_id: int,
    knows: Callable[[str, str], bool] | None = None,
    log: Any = None,
) -> Reading:
    """The layouts of captured base tables, and of their schemas' other tables, that `knows` does not know yet.

    `position` is where the stream will begin. `server_id` is the destination's own; the scan uses another. When
    nothing has to be read the binlog is not scanned. Raises SourceError and its kinds.
    """
    return Reading()
