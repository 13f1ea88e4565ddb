"""Documents made of several tables: what is kept of each row, which documents a change touches, and how the rows become
a document.

Each row of a member table is kept in the index of rows, with tokens by which the others find it. A row of join `j` has
the token `j=VALUES`, the values of its columns in `on`. A row of its parent has the token `j^VALUES`, the values of the
columns that these equal. So the rows of `j` that belong to a row of the parent are those with the same token but for
the sign, and the way from a changed row up to the documents is the same the other way round. A row of the index's own
tables has the document besides.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from headrace_documents.changes import Row, Rows
from headrace_documents.documents import MAX_ID_BYTES, TOMBSTONE, Action, Rules, document_id, index_name
from headrace_documents.errors import MessageError
from headrace_documents.index_settings import IndexSettings, JoinSettings
from headrace_documents.indexes import Identity
from headrace_documents.projection import Projection
from headrace_documents.types import Property

ROOT = "-"
"""The node of the index's own rows; no join has this name."""
_DOWN, _UP, _DOCUMENT = "=", "^", "@"
_MAX_TOKEN = 256
"""Characters; of longer ones the hash is taken."""
_MOST_OWN = 100
"""Rows that may have the same document id."""
_PLAIN = Rules()

ROWS_MAPPING: dict[str, Any] = {
    "dynamic": False,
    "properties": {
        "n": {"type": "keyword"},
        "t": {"type": "keyword"},
        "j": {"type": "keyword", "doc_values": False},
        "o": {"type": "keyword", "index": False, "doc_values": False},
        "d": {"type": "object", "enabled": False},
        "f": {"type": "object", "enabled": False},
    },
}
"""Of the index of rows: node, table, tokens, document, fields, and what the row touched before."""


class Document(NamedTuple):
    """One document of the index."""

    id: str
    routing: str = ""


Touched = Document | str
"""A document that has to be composed anew; or a token: those documents to which rows with it belong."""


class MemberRow(NamedTuple):
    """A row as it is kept. `document` is None but for those of the index's own tables. `former` is what it touched
    before, where only the row that was kept then has said so: a batch that is done again still knows it."""

    id: str
    node: str
    tokens: tuple[str, ...]
    fields: dict[str, Any]
    document: Document | None
    former: tuple[Touched, ...] = ()

    def touches(self) -> Touched | None:
        """The document of the row, or what leads to it; None for a row that belongs to none, because of a NULL."""
        return self.document if self.document is not None else _upward(self.tokens)


class RowChange(NamedTuple):
    """What a message says of one row: what is to be kept, and what that touches. With `unknown` the message does not
    say how the row was before: what the kept row touches is touched too."""

    actions: list[Action]
    touched: list[Touched]
    unknown: bool


def keep_former(actions: Sequence[Action], kept: Mapping[str, MemberRow]) -> Iterator[Touched]:
    """Before the actions of a RowChange with `unknown`: yields what the rows touch that they replace, and notes it in
    what is to be kept."""
    for action in actions:
        if (row := kept.get(action.id)) is not None:
            touched = dict.fromkeys(one for one in (row.touches(), *row.former) if one is not None)
            if action.body is not None and touched:
                action.body["f"] = [one if isinstance(one, str) else list(one) for one in touched]
            yield from touched


class TooManyRows(Exception):
    """A list would have more rows than it may."""


def token_of(name: str, sign: str, values: Sequence[Any]) -> str:
    """Values are compared as texts."""
    text = orjson.dumps([value if isinstance(value, str) else str(value) for value in values]).decode()
    return name + sign + (text if len(text) <= _MAX_TOKEN else hashlib.sha256(text.encode()).hexdigest())


def document_token(document: Document) -> str:
    """What the row of a document is found by."""
    return token_of("", _DOCUMENT, document)


def stored_row(name: str, source: Mapping[str, Any]) -> MemberRow:
    """A row of the index of rows."""
    document = source.get("o")
    return MemberRow(
        name,
        source["n"],
        tuple(source["j"]),
        source.get("d") or {},
        None if document is None else Document(*document),
        tuple(one if isinstance(one, str) else Document(*one) for one in source.get("f", ())),
    )


def _upward(tokens: Iterable[str]) -> str | None:
    return next((_flip(one, _DOWN, _UP) for one in tokens if _sign(one) == _DOWN), None)


def _sign(token: str) -> str:
    return next(letter for letter in token if letter in (_DOWN, _UP, _DOCUMENT))


def _flip(token: str, before: str, after: str) -> str:
    return token.replace(before, after, 1)


class _Node(NamedTuple):
    name: str
    patterns: list[re.Pattern[str]]
    join: JoinSettings | None
    joins: list[JoinSettings]
    """Those whose parent this is."""


class JoinTree:
    """One index with joins."""

    def __init__(self, settings: IndexSettings, *, tombstones: bool = False) -> None:
        """Raises MessageError when no index can have the name."""
        self.settings = settings
        self.target = index_name(settings.name, "", "")
        self.rows_index = f"headrace-rows.{self.target}"
        self.gone = TOMBSTONE if tombstones else None
        self._nodes: dict[str, _Node] = {}
        by_parent: dict[str, list[JoinSettings]] = {}
        for join in settings.join:
            by_parent.setdefault(join.parent or ROOT, []).append(join)
        declared: list[tuple[str, list[str], JoinSettings | None]] = [(ROOT, settings.tables, None)]
        declared += [(one.name, one.tables, one) for one in settings.join]
        for name, tables, own in declared:
            self._nodes[name] = _Node(name, [re.compile(one) for one in tables], own, by_parent.get(name, []))
        self._plans: dict[tuple[Any, ...], tuple[MemberPlan, ...]] = {}

    def plans(self, message: Rows) -> tuple[MemberPlan, ...]:
        """For each part that the message's table has in the documents. Raises UnfitTable."""
        key = message.database, message.table, tuple(message.types.items())
        known = self._plans.get(key)
        if known is None:
            known = self._plans[key] = tuple(
                MemberPlan(self, node, message.database, message.table, dict(message.types))
                for node in self.nodes_of(message.database, message.table)
            )
        return known

    def nodes_of(self, database: str, table: str) -> list[str]:
        """The nodes that have a table."""
        name = f"{database}.{table}"
        return [node.name for node in self._nodes.values() if any(one.fullmatch(name) for one in node.patterns)]

    def node(self, name: str) -> _Node:
        return self._nodes[name]

    def place(self, node: str, properties: dict[str, Property]) -> dict[str, Property]:
        """The mapping of a node's fields where they are in the document."""
        while (join := self._nodes[node].join) is not None:
            if join.shape != "fields":
                nested = {"type": "nested"} if join.shape == "list" and join.nested else {}
                properties = {join.name: {**nested, "properties": properties}}
            node = join.parent or ROOT
        return properties

    def most(self, node: str) -> int:
        """Rows of a node that may belong to one row of its parent."""
        join = self._nodes[node].join
        return join.most if join is not None else _MOST_OWN

    def wanted(self, rows: Iterable[MemberRow]) -> set[str]:
        """The tokens of the rows that belong to these."""
        return {_flip(one, _UP, _DOWN) for row in rows for one in row.tokens if _sign(one) == _UP}

    def compose(self, rows: Iterable[MemberRow], joined: Mapping[str, list[MemberRow]]) -> dict[str, Any] | None:
        """The document of which `rows` are the index's own, one but where tables share an id; None when there is none.
        `joined` are all rows below by their token. Raises TooManyRows."""
        for row in sorted(rows, key=_order):
            body: dict[str, Any] = {}
            if self._fill(ROOT, row, joined, body):
                return body
        return None

    def _fill(self, node: str, row: MemberRow, joined: Mapping[str, list[MemberRow]], body: dict[str, Any]) -> bool:
        """Puts a row and what belongs to it into `body`; False when it does not count, for want of a required one."""
        body.update(row.fields)
        for join in self._nodes[node].joins:
            token = next((one for one in row.tokens if one.startswith(join.name + _UP)), None)
            found = sorted(joined.get(_flip(token, _UP, _DOWN), ()), key=_order) if token is not None else []
            if len(found) > join.most:
                raise TooManyRows(f"more than {join.most} rows of {join.name} belong to one row; see `most`")
            if join.shape == "list":
                count = self._fill_list(join, found, joined, body)
            else:
                count = self._fill_one(join, found, joined, body)
            if join.required and not count:
                return False
        return True

    def _fill_one(
        self, join: JoinSettings, found: list[MemberRow], joined: Mapping[str, list[MemberRow]], body: dict[str, Any]
    ) -> int:
        for row in found:
            made: dict[str, Any] = {}
            if self._fill(join.name, row, joined, made):
                body.update(made if join.shape == "fields" else {join.name: made})
                return 1
        if join.shape == "object":
            body[join.name] = None
        return 0

    def _fill_list(
        self, join: JoinSettings, found: list[MemberRow], joined: Mapping[str, list[MemberRow]], body: dict[str, Any]
    ) -> int:
        made: list[dict[str, Any]] = []
        for row in found:
            one: dict[str, Any] = {}
            if self._fill(join.name, row, joined, one):
                made.append(one)
        body[join.name] = made
        return len(made)


def _order(row: MemberRow) -> tuple[int, str]:
    """By the key, which ends the id: whole numbers of one table come in their order."""
    return len(row.id), row.id


class MemberPlan:
    """How the rows of one table are kept for one node. `properties` is the mapping of their fields in the document."""

    def __init__(self, tree: JoinTree, node: str, database: str, table: str, types: Mapping[str, str]) -> None:
        """Raises UnfitTable."""
        self.tree, self.node = tree, node
        self._table = f"{database}.{table}"
        settings, found = tree.settings, tree.node(node)
        self._identity = Identity(settings, database, table, types) if found.join is None else None
        self._down = tuple(found.join.on) if found.join is not None else ()
        self._ups = tuple((one.name, tuple(one.on.values())) for one in found.joins)
        further = {*self._down, *(column for _, columns in self._ups for column in columns)}
        if self._identity is not None:
            further |= self._identity.columns
        projection = Projection(
            found.join or settings,
            settings.types(),
            types,
            place=(settings.name, found.join.name if found.join is not None else ""),
            what=f"index {settings.name}" + (f", join {node}," if found.join is not None else ""),
            table=self._table,
            prefix=found.join.field_prefix if found.join is not None else "",
            further=frozenset(further),
        )
        self._projection = projection
        self.properties = tree.place(node, projection.properties)

    def changes(self, message: Rows) -> Iterator[RowChange]:
        """Of each row of the message. Raises MessageError."""
        for i, (row, old) in enumerate(zip(message.rows, message.olds, strict=True)):
            version = message.version + i * message.step
            deleted = message.operation == "DELETE"
            after = None if deleted else self._kept(message.keys, row, i)
            former = row if deleted else None if old is None else {**row, **old}
            before, unknown = None, former is None
            if former is not None:
                try:
                    before = self._kept(message.keys, former, i)
                except MessageError:  # it is not whole: what is kept says what it touched
                    unknown = True
            name, actions = self._row_id(message.keys, row), []
            if former is not None and (old_name := self._row_id(message.keys, former)) != name:
                actions.append(self._action(old_name, None, version, i))
            actions.append(self._action(name, after, version, i))
            # What Spark computes is there for the row as it is now only, so that it always counts as changed.
            same = before == after and not unknown and not self._projection.computed
            images = [] if same else [before, after]
            touched = (one.touches() for one in images if one is not None)
            yield RowChange(actions, list(dict.fromkeys(one for one in touched if one is not None)), unknown)

    def _action(self, name: str, row: MemberRow | None, version: int, number: int) -> Action:
        index, body = self.tree.rows_index, None
        if row is not None:
            body = {"n": row.node, "t": self._table, "j": row.tokens, "d": row.fields}
            if row.document is not None:
                body["o"] = list(row.document)
        elif self.tree.gone is not None:
            body = {"n": self.node, "t": self._table, "j": ()}
        return Action(index, name, version, body, number)

    def _kept(self, keys: Sequence[str], row: Row, number: int) -> MemberRow | None:
        """None for a row that counts as deleted. Raises MessageError."""
        if self._projection.is_deleted(row):
            return None
        fields = self._projection.fields(row, number)
        tokens = []
        document = Document(*self._identity.of(keys, row)) if self._identity is not None else None
        if document is not None:
            tokens.append(document_token(document))
        elif (down := _values(row, self._down)) is not None:
            tokens.append(token_of(self.node, _DOWN, down))
        for name, columns in self._ups:
            if (up := _values(row, columns)) is not None:
                tokens.append(token_of(name, _UP, up))
        return MemberRow(self._row_id(keys, row), self.node, tuple(tokens), fields, document)

    def _row_id(self, keys: Sequence[str], row: Row) -> str:
        if not keys:
            raise MessageError(f"table {self._table} has no primary key, so its rows can't be joined")
        key = document_id(keys, row, _PLAIN)
        name = f"{self.node}|{self._table}|{key}"
        if len(name.encode()) > MAX_ID_BYTES:
            return f"{self.node}|{hashlib.sha256(name.encode()).hexdigest()}"
        return name


def _values(row: Row, columns: Sequence[str]) -> list[Any] | None:
    """None where one of them is NULL: NULL equals nothing. Raises MessageError when one is absent."""
    values = []
    for column in columns:
        if column not in row:
            raise MessageError(f"the row lacks {column}: the source needs binlog_row_image=FULL")
        if row[column] is None:
            return None
        values.append(row[column])
    return values


class JoinTrees:
    """The indexes with joins that [[index]] declares."""

    def __init__(self, settings: Sequence[IndexSettings], *, tombstones: bool = False) -> None:
        self.trees = {
            tree.target: tree for tree in (JoinTree(one, tombstones=tombstones) for one in settings if one.join)
        }

    def plans(self, message: Rows) -> list[MemberPlan]:
        """Those for the message's table. Raises UnfitTable."""
        return [plan for tree in self.trees.values() for plan in tree.plans(message)]
