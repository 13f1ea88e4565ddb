"""Reads and writes the cursors of Canal, which are JSON in ZooKeeper or meta.dat, and Kafka Connect's offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from headrace.canal_wire import cursor as wire
from headrace.canal_wire.cursor import CLIENT
from headrace.errors import Refusal
from headrace.model import Position
from headrace.moving.foreign import ForeignCursor
from headrace.ports.replay import Published

# -- Canal --------------------------------------------------------------------------------------------------------


def canal_cursor(raw: Any) -> ForeignCursor:
    """Reads a cursor as Canal prints it, LogPosition or the position within. Raises ValueError."""
    if not isinstance(raw, dict):
        raise ValueError("a cursor should be a JSON object")
    position = raw.get("postion", raw)  # Canal's own spelling
    if not isinstance(position, dict):
        raise ValueError("`postion` should be a JSON object")
    file, gtids = _text(position, "journalName"), _text(position, "gtid")
    offset, time_ms, server_id = (_number(position, key) for key in ("position", "timestamp", "serverId"))
    if file and offset < 4:
        raise ValueError(f"`position` should be 4 or more with `journalName`, not {offset}")
    if not (file or gtids or time_ms):
        raise ValueError("has neither journalName nor gtid nor timestamp")
    handled = position.get("included") is not True  # Canal would send the event again
    return ForeignCursor(file, offset, gtids.replace("\n", ""), time_ms, server_id, inclusive=handled)


def parsed_cursor(data: bytes) -> ForeignCursor:
    """Reads the same from a node's data. Raises ValueError."""
    return canal_cursor(_json(data))


def meta_cursors(file: Path, names: Mapping[str, str], problems: list[str]) -> dict[str, ForeignCursor]:
    """Reads the cursors of a meta.dat, by destination; `names` are Canal's of them. Adds errors to `problems`."""
    try:
        data = file.read_bytes()
    except OSError as error:
        problems.append(f"{file}: the file can't be read: {error.strerror}")
        return {}
    ours, found = {canals: name for name, canals in names.items()}, dict[str, ForeignCursor]()
    try:
        for client in _json(data)["clientDatas"]:
            identity = client["clientIdentity"]
            if client.get("cursor") is None or int(identity["clientId"]) != CLIENT:
                continue
            if (canals := str(identity["destination"])) not in ours:
                raise ValueError(f"is about {canals}, which is no destination of the folder")
            found[ours[canals]] = canal_cursor(client["cursor"])
        return found
    except (KeyError, TypeError, AttributeError) as error:
        problems.append(f"{file}: line 1: is no meta.dat of Canal ({type(error).__name__}: {error})")
    except ValueError as error:
        problems.append(f"{file}: line 1: {error}")
    return {}


def begin_of(position: Position) -> str:
    """Returns `file:offset` of the transaction that a position is in, where other systems continue."""
    return f"{position.file}:{position.offset}"


def made_canal_cursor(position: Position, address: tuple[str, int], server_id: int) -> dict[str, Any]:
    """See canal_wire.cursor.canal_cursor. Raises Refusal for a position without a file."""
    _file_position(position)
    return wire.canal_cursor(position, address, server_id)


def meta_data(destination: str, cursor: dict[str, Any]) -> bytes:
    """Returns a cursor as a meta.dat."""
    identity = {"clientId": CLIENT, "destination": destination, "filter": ""}
    return orjson.dumps({"clientDatas": [{"clientIdentity": identity, "cursor": cursor}], "destination": destination})


# -- Debezium -----------------------------------------------------------------------------------------------------


def debezium_key(connector: str, prefix: str) -> bytes:
    """Returns the key of a connector's record in Kafka Connect's topic of offsets."""
    return orjson.dumps([connector, {"server": prefix}])


def debezium_cursor(raw: Any) -> ForeignCursor:
    """Reads an offset as Debezium's connectors for MySQL and MariaDB store it. Raises ValueError."""
    if not isinstance(raw, dict):
        raise ValueError("an offset should be a JSON object")
    if raw.get("snapshot") not in (None, False, "false"):
        raise ValueError("the connector's first snapshot has not ended, so there is no position to go on from")
    file, gtids, offset = _text(raw, "file"), _text(raw, "gtids"), _number(raw, "pos")
    if not file and not gtids:
        raise ValueError("has neither file nor gtids")
    if file and offset < 4:
        raise ValueError(f"`pos` should be 4 or more with `file`, not {offset}")
    inside = bool(_number(raw, "event") or _number(raw, "row"))
    time_ms, server_id = _number(raw, "ts_sec") * 1000, _number(raw, "server_id")
    return ForeignCursor(file, offset, gtids.replace("\n", ""), time_ms, server_id, inside=inside)


def stored_offset(records: Iterable[Published], connector: str, prefix: str) -> ForeignCursor:
    """Returns the offset of a connector from the records of Kafka Connect's topic of offsets. Raises ValueError."""
    latest: bytes | None = None
    for record in records:
        if _is_offset_of(connector, prefix, record.key):
            latest = record.value
    if latest is None:
        raise ValueError(f"has no offset of {connector} with the server {prefix}")
    try:
        return debezium_cursor(_json(latest))
    except ValueError as error:
        raise ValueError(f"the offset of {connector}: {error}") from None


def _is_offset_of(connector: str, prefix: str, key: bytes | None) -> bool:
    try:
        named, partition = orjson.loads(key or b"")
        return bool(named == connector and partition["server"] == prefix)
    except (ValueError, TypeError, KeyError):
        return False


def made_debezium_offset(position: Position, server_id: int) -> dict[str, Any]:
    """Returns what Debezium reads as its offset, so that it continues at `position`. Raises Refusal."""
    file, offset = _file_position(position)
    made = {"ts_sec": position.commit_time_us // 1_000_000, "file": file, "pos": offset, "server_id": server_id}
    return {**made, "gtids": position.gtid_set} if position.gtid_set else made


def offsets_file(prefix: str, offset: dict[str, Any]) -> bytes:
    """Returns an offset as the body of PATCH /connectors/NAME/offsets."""
    return orjson.dumps(
        {"offsets": [{"partition": {"server": prefix}, "offset": offset}]},
        option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
    )


def not_in_cursor(position: Position) -> list[str]:
    """Returns what is lost of a position when it is written as another program's: those do not record rows within a
    transaction."""
    notes = []
    if position.events_done or position.rows_done:
        notes.append(
            f"the position lies in the transaction at {position.file}:{position.offset}: the cursor is its beginning, "
            f"so {position.events_done} rows events that were published come again"
        )
    if position.open_xa:
        names = ", ".join(xa.xid for xa in position.open_xa[:5])
        notes.append(f"prepared XA transactions are not in the cursor, and the other program has its own way: {names}")
    if position.snapshots:
        notes.append("a snapshot is under way, and is not in the cursor")
    return notes


def _file_position(position: Position) -> tuple[str, int]:
    if not position.file:
        raise Refusal(
            "the position is a GTID set alone, and was not read from yet, so that no file and offset belong to it",
            remedy="run the destination until it has published something",
        )
    return position.file, position.offset


# -- JSON ---------------------------------------------------------------------------------------------------------


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"is no JSON: {error}") from None


def _text(raw: dict[str, Any], key: str) -> str:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"`{key}` should be a text")
    return value or ""


def _number(raw: dict[str, Any], key: str) -> int:
    value: Any = raw.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 1 << 63:
        raise ValueError(f"`{key}` should be a whole number")
    return max(0, int(value))
