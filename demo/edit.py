"""What the demo's page may change in the tables: the name of an item, prices, and whether a service is on sale."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from demo import catalog
from devstack.servers.sql import SqlServer

Id = Annotated[int, Field(ge=1, lt=2**63)]
Price = Annotated[Decimal, Field(ge=0, max_digits=10, decimal_places=2)]


class Edit(BaseModel):
    """New values of a service; None, or no price, leaves what is there."""

    model_config = ConfigDict(extra="forbid")
    service: Id
    item_name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    on_sale: bool | None = None
    prices: Annotated[dict[Id, Price], Field(max_length=10)] = {}


class Done(NamedTuple):
    """How many rows have changed, and when COMMIT had ended, by time.monotonic()."""

    changed: int
    committed: float


def parse(body: bytes) -> Edit:
    """Raises ValueError with one sentence."""
    try:
        return Edit.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the request"
        raise ValueError(f"{place}: {first['msg']}") from None


def apply(server: SqlServer, edit: Edit) -> Done:
    """One transaction. Raises pymysql.MySQLError."""
    changed = 0
    with catalog.session(server, autocommit=False) as cursor:
        if edit.item_name is not None:
            sql = "UPDATE serve_item SET name = %s WHERE id = (SELECT serve_item_id FROM serve WHERE id = %s)"
            changed += cursor.execute(sql, (edit.item_name, edit.service))
        if edit.on_sale is not None:
            changed += cursor.execute("UPDATE serve SET is_on_sale = %s WHERE id = %s", (edit.on_sale, edit.service))
        for key, price in edit.prices.items():
            sql = "UPDATE serve_price SET price = %s WHERE id = %s AND serve_id = %s"
            changed += cursor.execute(sql, (price, key, edit.service))
        cursor.connection.commit()
        return Done(changed, time.monotonic())
