"""Compares every row of the join that the database itself computes with every document: all fields, and their types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pymysql.constants import FIELD_TYPE
from pymysql.converters import encoders

from demo import catalog
from devstack.servers.sql import SqlServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError

Documents = dict[str, dict[str, Any]]

INDEX = "services"
JOIN = """SELECT s.id, s.city_name, s.is_on_sale, s.is_hot, s.hot_since, s.detail, s.updated_at,
    i.id AS item_id, i.name AS item_name, i.unit AS item_unit, i.description AS item_description{further},
    t.id AS type_id, t.name AS type_name
FROM serve s LEFT JOIN serve_item i ON i.id = s.serve_item_id LEFT JOIN serve_type t ON t.id = i.serve_type_id"""
PRICES = "SELECT serve_id, id, unit, price FROM serve_price ORDER BY serve_id, id"
INTEGERS = {FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG, FIELD_TYPE.YEAR}
"""Types of columns whose values are numbers in documents."""


@dataclass
class Comparison:
    """How many there are of each, and what differs, a line each."""

    rows: int
    documents: int
    differences: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        """Whether the documents are the rows, and there are some."""
        return not self.differences and self.rows == self.documents > 0


def selected(cursor: Any, sql: str) -> list[dict[str, Any]]:
    """The rows of a query of a connection without conversions: integers as numbers, all else as the server's text."""
    cursor.execute(sql)
    columns = [(item[0], item[1] in INTEGERS) for item in cursor.description]
    return [
        {
            name: int(value) if number and value is not None else value
            for (name, number), value in zip(columns, values, strict=True)
        }
        for values in cursor.fetchall()
    ]


def read_join(server: SqlServer) -> Documents:
    """The services as their documents should be, as of one moment."""
    with catalog.session(server, autocommit=False, conv=dict(encoders)) as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SHOW COLUMNS FROM serve_item LIKE 'duration_minutes'")
        further = ", i.duration_minutes AS item_duration_minutes" if cursor.fetchall() else ""
        prices: dict[int, list[dict[str, Any]]] = {}
        for row in selected(cursor, PRICES):
            prices.setdefault(row.pop("serve_id"), []).append({**row, "price": float(row["price"])})
        return {str(row["id"]): _document(row, prices) for row in selected(cursor, JOIN.format(further=further))}


def _document(row: dict[str, Any], prices: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    kind, item = {"id": row.pop("type_id"), "name": row.pop("type_name")}, row.pop("item_id")
    made = {name: value for name, value in row.items() if item is not None or not name.startswith("item_")}
    if item is not None:
        made["type"] = None if kind["id"] is None else kind
    for name in ("is_on_sale", "is_hot"):
        made[name] = bool(row[name])
    for name, zone in (("hot_since", "+08:00"), ("updated_at", "+00:00")):
        made[name] = None if row[name] is None else f"{row[name].replace(' ', 'T')}{zone}"
    return {**made, "prices": prices.get(row["id"], [])}


def read_documents(cluster: Cluster, index: str = INDEX) -> Documents:
    """All documents: id -> source; none when there is no index yet."""
    try:
        cluster.refresh(index)
        return {hit["_id"]: hit["_source"] for page in cluster.search_pages(index) for hit in page}
    except ApiError as error:
        if error.status != 404:
            raise
        return {}


def compare(rows: Documents, documents: Documents) -> Comparison:
    """Every row with its document, and every document with its row; values and their types."""
    found = Comparison(len(rows), len(documents))
    for key in sorted(rows.keys() | documents.keys(), key=lambda text: (len(text), text)):
        row, document = rows.get(key), documents.get(key)
        if row is None:
            found.differences.append(f"document {key} has no row: {document}")
        elif document is None:
            found.differences.append(f"row {key} has no document: {row}")
        else:
            for column in [*row, *(name for name in document if name not in row)]:
                reported, stored = row.get(column, "(none)"), document.get(column, "(none)")
                if reported != stored or type(reported) is not type(stored):
                    found.differences.append(
                        f"row {key}, {column}: {reported!r} in the table, {stored!r} in the document"
                    )
    return found
