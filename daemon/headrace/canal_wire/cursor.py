"""Canal's nodes in ZooKeeper, and the cursor in one of them: a client's LogPosition as JSON."""

from __future__ import annotations

from typing import Any

import orjson

from headrace.model import Position

ROOT = "/otter/canal"
CLIENT = 1001
"""The id of a Canal client, which is always the same."""
_LOG_POSITION = "com.alibaba.otter.canal.protocol.position.LogPosition"


def destination_node(destination: str, root: str = ROOT) -> str:
    """Returns Canal's node of a destination in ZooKeeper."""
    return f"{root}/destinations/{destination}"


def cursor_node(destination: str, root: str = ROOT) -> str:
    """Returns Canal's node of a client's cursor in ZooKeeper."""
    return f"{destination_node(destination, root)}/{CLIENT}/cursor"


def canal_cursor(position: Position, address: tuple[str, int], server_id: int) -> dict[str, Any]:
    """Returns what Canal reads as a client's cursor, so that it continues at `position`, which has a file. `address` is
    that of the source in Canal's instance.properties: with another one Canal uses the time."""
    host, port = address
    return {
        "identity": {"slaveId": -1, "sourceAddress": {"address": host, "port": port}},
        "postion": {  # Canal's own spelling
            "gtid": position.gtid_set,
            "included": False,
            "journalName": position.file,
            "position": position.offset,
            "serverId": server_id,
            "timestamp": position.commit_time_us // 1000,
        },
    }


def node_data(cursor: dict[str, Any]) -> bytes:
    """Returns the node's data for a cursor, with the class that Canal makes of it."""
    return orjson.dumps({"@type": _LOG_POSITION, **cursor})
