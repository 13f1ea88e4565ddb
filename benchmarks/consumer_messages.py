"""Messages for the consumer's benchmark, as the daemon publishes them in Canal's format."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

Row = dict[str, str]
INDEX = "shop.service"
"""The index of rows of services(), undeclared."""
START = 3_563_400_000_000_000_000
"""The first `_pos`."""
_STEP = 1024
_SERVICE = {
    "id": "bigint",
    "user_id": "int",
    "name": "varchar(64)",
    "price": "decimal(10,2)",
    "updated": "datetime(3)",
    "note": "text",
    "attributes": "json",
    "on_sale": "tinyint unsigned",
}
_NOTE = "上门服务，价格面议。" * 6
SERVE = {"id": "bigint", "serve_item_id": "bigint", "city": "varchar(20)", "on_sale": "tinyint"}
ITEM = {"id": "bigint", "name": "varchar(64)", "serve_type_id": "bigint", "description": "text"}
TYPE = {"id": "bigint", "name": "varchar(64)"}
PRICE = {"id": "bigint", "serve_id": "bigint", "unit": "varchar(9)", "price": "decimal(10,2)"}


def message(table: str, types: dict[str, str], rows: Sequence[Row], number: int, **more: Any) -> bytes:
    """Returns an INSERT, or what `more` says."""
    made: dict[str, Any] = {
        "_pos": str(START + number * _STEP),
        "data": rows,
        "database": "shop",
        "es": 1_767_225_600_000,
        "gtid": "",
        "id": number,
        "isDdl": False,
        "mysqlType": types,
        "old": None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": dict.fromkeys(types, 12),
        "table": table,
        "ts": 1_767_225_600_001,
        "type": "INSERT",
    }
    return orjson.dumps(made | more)


def services(rows: int, per_message: int) -> Iterator[bytes]:
    """Yields rows of one table of eight columns."""
    for number, first in enumerate(range(0, rows, per_message)):
        yield message(
            "service", _SERVICE, [_service(key) for key in range(first, min(rows, first + per_message))], number
        )


def service(key: int) -> bytes:
    """Returns one new row of that table."""
    return message("service", _SERVICE, [_service(key)], key)


def _service(key: int) -> Row:
    return {
        "id": str(key),
        "user_id": str(key * 7 % 100_000),
        "name": f"家庭保洁 {key}",
        "price": f"{key % 10_000}.{key % 100:02d}",
        "updated": f"2026-11-21 10:{key % 60:02d}:{key * 7 % 60:02d}.{key % 1000:03d}",
        "note": f"{_NOTE}{key}",
        "attributes": f'{{"city": "北京", "n": {key}, "tags": ["hot", {key % 9}]}}',
        "on_sale": str(key % 2),
    }


def joined(serves: int) -> Iterator[bytes]:
    """Yields services of an item each, items of a type each, and two prices a service: three rows a service and a
    few."""
    number = 0
    for key in range(20):
        yield message("serve_type", TYPE, [{"id": str(key), "name": f"类型 {key}"}], (number := number + 1))
    for key in range(500):
        row = {"id": str(key), "name": f"日常保洁 {key}", "serve_type_id": str(key % 20), "description": _NOTE}
        yield message("serve_item", ITEM, [row], (number := number + 1))
    for key in range(serves):
        yield message("serve", SERVE, [serve(key, key % 500)], (number := number + 1))
        prices = [
            {"id": str(2 * key + n), "serve_id": str(key), "unit": "次小时"[n], "price": f"{key % 999}.50"}
            for n in (0, 1)
        ]
        yield message("serve_price", PRICE, prices, (number := number + 1))


def serve(key: int, item: int) -> Row:
    """Returns a service."""
    return {"id": str(key), "serve_item_id": str(item), "city": f"城市{key % 30}", "on_sale": "1"}


def shared_item(serves: int) -> Iterator[bytes]:
    """Yields services that all have one item."""
    yield message("serve_item", ITEM, [{"id": "1", "name": "前", "serve_type_id": "1", "description": _NOTE}], 1)
    for number, first in enumerate(range(0, serves, 30), 2):
        yield message("serve", SERVE, [serve(key, 1) for key in range(first, min(serves, first + 30))], number)


def renamed_item(number: int) -> bytes:
    """Returns a new name for the item of `shared_item`."""
    row = {"id": "1", "name": f"后 {number}", "serve_type_id": "1", "description": _NOTE}
    old = [{"name": "前"}]
    return message("serve_item", ITEM, [row], 1_000_000 + number, type="UPDATE", old=old)


DECLARED: dict[str, Any] = {"name": "declared", "tables": [r"shop\.service"]}
"""The section [[index]] for rows of services(), with the table's types."""
SERVICES: dict[str, Any] = {
    "name": "services",
    "tables": [r"shop\.serve"],
    "join": [
        {"name": "item", "tables": [r"shop\.serve_item"], "on": {"id": "serve_item_id"}, "drop": ["id"]},
        {
            "name": "type",
            "parent": "item",
            "tables": [r"shop\.serve_type"],
            "on": {"id": "serve_type_id"},
            "shape": "object",
        },
        {
            "name": "prices",
            "tables": [r"shop\.serve_price"],
            "on": {"serve_id": "id"},
            "shape": "list",
            "drop": ["serve_id"],
        },
    ],
}
"""The section [[index]] for them."""


def fill(servers: str, topic: str, values: Iterator[bytes], partitions: int = 2) -> tuple[int, int]:
    """Creates the topic and publishes; returns messages and bytes."""
    return asyncio.run(_fill(servers, topic, values, partitions))


async def _fill(servers: str, topic: str, values: Iterator[bytes], partitions: int) -> tuple[int, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, partitions, 1)])
    finally:
        await admin.close()
    count = size = 0
    async with AIOKafkaProducer(bootstrap_servers=servers, linger_ms=20, max_batch_size=1 << 20) as producer:
        for value in values:
            await producer.send(topic, value, partition=count % partitions)
            count += 1
            size += len(value)
        await producer.flush()
    return count, size
