"""Compares every row of a table with every document of an index: all columns, and the types the consumer writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.constants import FIELD_TYPE
from pymysql.converters import encoders

from demo.catalog import DATABASE, TABLE
from devstack.servers.sql import SqlServer
from headrace_documents.cluster import Cluster
from headrace_documents.errors import ApiError

Documents = dict[str, dict[str, Any]]

INDEX = f"{DATABASE}.{TABLE}"
_INTEGERS = {FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG, FIELD_TYPE.YEAR}


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


def read_rows(server: SqlServer) -> Documents:
    """The table as its documents should be: key -> columns, integers as numbers, all else as the server's text."""
    # Without the driver's conversions: everything comes as text, as the server says it.
    connection = pymysql.connect(
        **server.connection("root"),
        database=DATABASE,
        charset="utf8mb4",
        conv=dict(encoders),
        init_command="SET time_zone = '+00:00'",
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {TABLE}")
        columns = [(item[0], item[1] in _INTEGERS) for item in cursor.description]
        found: Documents = {}
        for values in cursor.fetchall():
            row: dict[str, Any] = {}
            for (name, number), value in zip(columns, values, strict=True):
                row[name] = int(value) if number and value is not None else value
            found[str(row["id"])] = row
        return found


def read_documents(cluster: Cluster) -> Documents:
    """All documents: id -> source; none when there is no index yet."""
    try:
        cluster.refresh(INDEX)
        return {hit["_id"]: hit["_source"] for page in cluster.search_pages(INDEX) for hit in page}
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
                told, stored = row.get(column, "(none)"), document.get(column, "(none)")
                if told != stored or type(told) is not type(stored):
                    found.differences.append(f"row {key}, {column}: {told!r} in the table, {stored!r} in the document")
    return found


def search(cluster: Cluster, phrase: str, size: int = 5) -> tuple[int, list[dict[str, Any]]]:
    """How many services have the phrase in their name, and the first of them."""
    cluster.refresh(INDEX)
    wanted = {"query": {"match_phrase": {"name": phrase}}, "size": size, "track_total_hits": True}
    found = cluster.call("POST", (INDEX, "_search"), wanted)
    return int(found["hits"]["total"]["value"]), [hit["_source"] for hit in found["hits"]["hits"]]
