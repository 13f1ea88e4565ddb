"""Documents made from several tables: what is kept of each row, which documents a change affects, and how rows become a
document.

Each row of a member table is kept in the index of rows, with tokens by which the others find it. A row of join `j` has
the token `j=VALUES`, the values of its columns in `on`. A row of its parent has the token `j^VALUES`, the values of the
columns that these equal. So the rows of `j` that belong to a row of the parent have the same token except for the sign,
and the way from a changed row up to the documents is the reverse. A row of the index's own tables also has the
document."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from headrace_documents.documents import MAX_ID_BYTES, TOMBSTONE, Action, Rules, document_id, index_name, rows_index
from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Row, Rows
from headrace_documents.indexes.plans import Identity
from headrace_documents.indexes.projection import LacksColumn, Projection
from headrace_documents.indexes.settings import IndexSettings, JoinSettings
from headrace_documents.indexes.types import Property

ROOT = "-"
"""The node of the index's own rows; no join has this name."""
_DOWN, _UP, _DOCUMENT = "=", "^", "@"
_MAX_TOKEN = 256
"""Characters; longer ones are hashed."""
_MOST_OWN = 100
"""Rows that may have the same document id."""
_PLAIN = Rules()
_WHOLE = re.compile(r"-?[0-9]{1,20}")

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
"""The mapping of the index of rows: node, table, tokens, document, fields, and what the row affected before."""
WITHOUT_FIELDS = ("n", "j", "o", "f")
"""What stored_row() needs of a row without its fields."""


class Document(NamedTuple):
    """One document of the index."""

    id: str
    routing: str = ""


Touched = Document | str
"""A document that must be composed again; or a token: the documents to which rows with it belong."""


class MemberRow(NamedTuple):
    """A row as it is kept. `document` is None except for rows of the index's own tables. `former` is what it affected
    before, if only the row kept then had it: a repeated batch still knows it."""

    id: str
    node: str
    tokens: tuple[str, ...]
    fields: dict[str, Any]
    document: Document | None
    former: tuple[Touched, ...] = ()

    def touches(self) -> Touched | None:
        """Returns the document of the row, or what leads to it; None for a row that belongs to none, because of a
        NULL."""
        return self.document if self.document is not None else _upward(self.tokens)

    def touched(self) -> list[Touched]:
        """Returns what the row affects, and what it affected before."""
        return list(dict.fromkeys(one for one in (self.touches(), *self.former) if one is not None))


class RowChange(NamedTuple):
    """A message's change of one row: what must be kept, and what that affects. `before` is what the row affected
    before, according to the message; None if it does not say."""

    actions: list[Action]
    touched: list[Touched]
    before: tuple[Touched, ...] | None


def keep_former(
    actions: Sequence[Action], kept: Mapping[str, MemberRow], before: Sequence[Touched] | None = None
) -> Iterator[Touched]:
    """Prepares the actions of a RowChange: yields what the replaced rows affect, except for what its message already
    has, and records it in what is kept. Lost messages may have moved a row; and a repeated batch finds rows that it has
    written itself."""
    for action in actions:
        if (row := kept.get(action.id)) is not None:
            touched = [one for one in row.touched() if before is None or one not in before]
            if action.body is not None and touched:
                action.body["f"] = _stored(touched)
            yield from touched


def truncated_row(table: str, row: MemberRow) -> dict[str, Any]:
    """Returns what is kept of a row whose table was truncated, until all that it affected is composed."""
    return {"t": table, "n": "", "j": (), "f": _stored(row.touched())}


def _stored(touched: Sequence[Touched]) -> list[Any]:
    return [one if isinstance(one, str) else list(one) for one in touched]


class TooManyRows(Exception):
    """A list would have more rows than allowed."""


def token_of(name: str, sign: str, values: Sequence[Any]) -> str:
    """Returns a token; values are compared as texts."""
    text = orjson.dumps([value if isinstance(value, str) else str(value) for value in values]).decode()
    return name + sign + (text if len(text) <= _MAX_TOKEN else hashlib.sha256(text.encode()).hexdigest())


def document_token(document: Document) -> str:
    """Returns the token by which the row of a document is found."""
    return token_of("", _DOCUMENT, document)


def stored_row(name: str, source: Mapping[str, Any]) -> MemberRow:
    """Returns a row of the index of rows."""
    document = source.get("o")
    return MemberRow(
        name,
        source["n"],
        tuple(source["j"]),
        source.get("d") or {},
        None if document is None else Document(*document),
        tuple(one if isinstance(one, str) else Document(*one) for one in source.get("f", ())),
    )


def _touches(row: MemberRow | None) -> tuple[Touched, ...]:
    touched = row.touches() if row is not None else None
    return () if touched is None else (touched,)


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
    """Those with this parent."""


class JoinTree:
    """One index with joins."""

    def __init__(
        self, settings: IndexSettings, *, tombstones: bool = False, into: str = "", replaced: bool = False
    ) -> None:
        """`into` is an index that is filled in place of the declared one, which is `replaced` then. Raises MessageError
        if no index can have the name."""
        self.settings = settings
        self.target = into or index_name(settings.name, "", "")
        self.rows_index = rows_index(self.target)
        self.gone = TOMBSTONE if tombstones else None
        self.structure = "" if replaced else _structure(settings)
        """How rows find each other and their documents; rows that are kept for another structure find nothing. "" for
        an index that is replaced, where that does not matter."""
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
        """Returns a plan for each part that the message's table has in the documents. Raises UnfitTable, and
        LacksColumn for a message without a column of `on`."""
        key = message.database, message.table, tuple(message.types.items())
        known = self._plans.get(key)
        if known is None:
            known = self._plans[key] = tuple(
                MemberPlan(self, node, message.database, message.table, dict(message.types))
                for node in self.nodes_of(message.database, message.table)
            )
        return known

    def nodes_of(self, database: str, table: str) -> list[str]:
        """Returns the nodes that have a table."""
        name = f"{database}.{table}"
        return [node.name for node in self._nodes.values() if any(one.fullmatch(name) for one in node.patterns)]

    def node(self, name: str) -> _Node:
        return self._nodes[name]

    def place(self, node: str, properties: dict[str, Property]) -> dict[str, Property]:
        """Returns the mapping of a node's fields at their position in the document."""
        while (join := self._nodes[node].join) is not None:
            if join.shape != "fields":
                nested = {"type": "nested"} if join.shape == "list" and join.nested else {}
                properties = {join.name: {**nested, "properties": properties}}
            node = join.parent or ROOT
        return properties

    def most(self, node: str) -> int:
        """Returns how many rows of a node may belong to one row of its parent."""
        join = self._nodes[node].join
        return join.most if join is not None else _MOST_OWN

    def wanted(self, rows: Iterable[MemberRow]) -> set[str]:
        """Returns the tokens of the rows that belong to these."""
        return {_flip(one, _UP, _DOWN) for row in rows for one in row.tokens if _sign(one) == _UP}

    def compose(self, rows: Iterable[MemberRow], joined: Mapping[str, list[MemberRow]]) -> dict[str, Any] | None:
        """Returns the document of which `rows` are the index's own, one unless tables share an id; None if there is
        none. `joined` are all rows below by their token. Raises TooManyRows."""
        for row in sorted(rows, key=_order):
            body: dict[str, Any] = {}
            if self._fill(ROOT, row, joined, body):
                return body
        return None

    def _fill(self, node: str, row: MemberRow, joined: Mapping[str, list[MemberRow]], body: dict[str, Any]) -> bool:
        """Adds a row and what belongs to it to `body`; returns False if it does not count, because a required one is
        missing."""
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


def _structure(settings: IndexSettings) -> str:
    joins = {one.name: [one.parent, one.on] for one in settings.join}
    made = {"id": settings.id, "routing": settings.routing, "joins": joins}
    return orjson.dumps(made, option=orjson.OPT_SORT_KEYS).decode()


def _order(row: MemberRow) -> tuple[list[tuple[int, int, str]], str]:
    """Returns the sort key, from the key at the end of the id: integers by their value, before texts."""
    key = row.id.split("|", 2)[-1]
    values: Any = [key]
    if key.startswith("["):
        with suppress(orjson.JSONDecodeError):  # a text that only begins like a compound key
            values = orjson.loads(key)
    return [(0, int(one), "") if _WHOLE.fullmatch(one) else (1, 0, one) for one in map(str, values)], row.id


class MemberPlan:
    """How the rows of one table are kept for one node. `properties` is the mapping of their fields in the document."""

    def __init__(self, tree: JoinTree, node: str, database: str, table: str, types: Mapping[str, str]) -> None:
        """Raises UnfitTable."""
        self.tree, self.node = tree, node
        self.table = f"{database}.{table}"
        settings, found = tree.settings, tree.node(node)
        self._identity = Identity(settings, database, table, types) if found.join is None else None
        self._down = tuple(found.join.on) if found.join is not None else ()
        self._ups = tuple((one.name, tuple(one.on.values())) for one in found.joins)
        further = {*self._down, *(column for _, columns in self._ups for column in columns)}
        what = f"index {settings.name}" + (f", join {node}," if found.join is not None else "")
        if types and (missing := sorted(further - types.keys())):
            raise LacksColumn(f"{what} names column {missing[0]!r}, and {self.table} has none of that name")
        if self._identity is not None:
            further |= self._identity.columns
        projection = Projection(
            found.join or settings,
            settings.types(),
            types,
            place=(settings.name, found.join.name if found.join is not None else ""),
            what=what,
            table=self.table,
            prefix=found.join.field_prefix if found.join is not None else "",
            further=frozenset(further),
        )
        self._projection = projection
        self.properties = tree.place(node, projection.properties)

    def changes(self, message: Rows) -> Iterator[RowChange]:
        """Yields the change of each row of the message. Raises MessageError."""
        for i, (row, old) in enumerate(zip(message.rows, message.olds, strict=True)):
            version = message.version + i * message.step
            deleted = message.operation == "DELETE"
            after = None if deleted else self._kept(message.keys, row, i)
            former = row if deleted else None if old is None else {**row, **old}
            before, known = None, former is not None
            if former is not None:
                try:
                    before = self._kept(message.keys, former, i)
                except MessageError:  # it is incomplete: the kept row has what it affected
                    known = False
            name, actions = self._row_id(message.keys, row), []
            if former is not None and (old_name := self._row_id(message.keys, former)) != name:
                actions.append(self._action(old_name, None, version, i))
            actions.append(self._action(name, after, version, i))
            # Computed fields exist only for the present row, so it always counts as changed.
            same = before == after and known and not self._projection.computed
            then, now = _touches(before), _touches(after)
            yield RowChange(actions, [] if same else list(dict.fromkeys(then + now)), then if known else None)

    def _action(self, name: str, row: MemberRow | None, version: int, number: int) -> Action:
        index, body = self.tree.rows_index, None
        if row is not None:
            body = {"n": row.node, "t": self.table, "j": row.tokens, "d": row.fields}
            if row.document is not None:
                body["o"] = list(row.document)
        elif self.tree.gone is not None:
            body = {"n": self.node, "t": self.table, "j": ()}
        return Action(index, name, version, body, number)

    def _kept(self, keys: Sequence[str], row: Row, number: int) -> MemberRow | None:
        """Returns what is kept; None for a row that counts as deleted. Raises MessageError."""
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
            raise MessageError(f"table {self.table} has no primary key, so its rows can't be joined")
        key = document_id(keys, row, _PLAIN)
        name = f"{self.node}|{self.table}|{key}"
        if len(name.encode()) > MAX_ID_BYTES:
            return f"{self.node}|{hashlib.sha256(name.encode()).hexdigest()}"
        return name


def _values(row: Row, columns: Sequence[str]) -> list[Any] | None:
    """Returns the values; None if one of them is NULL: NULL equals nothing. Raises MessageError if one is absent."""
    values = []
    for column in columns:
        if column not in row:
            raise MessageError(f"the row lacks {column}: the source needs binlog_row_image=FULL")
        if row[column] is None:
            return None
        values.append(row[column])
    return values


class JoinTrees:
    """The declared indexes with joins, and those that are filled to replace them: `doubles` has these by the names of
    the first."""

    def __init__(
        self,
        settings: Sequence[IndexSettings],
        *,
        tombstones: bool = False,
        dual_writes: Mapping[str, str] | None = None,
    ) -> None:
        self.trees: dict[str, JoinTree] = {}
        for one in settings:
            if one.join:
                into = (dual_writes or {}).get(index_name(one.name, "", ""))
                tree = JoinTree(one, tombstones=tombstones, replaced=into is not None)
                self.trees[tree.target] = tree
                if into is not None:
                    self.trees[into] = JoinTree(one, tombstones=tombstones, into=into)

    def plans(self, message: Rows) -> list[MemberPlan]:
        """Returns the plans for the message's table. Raises UnfitTable."""
        return [plan for tree in self.trees.values() for plan in tree.plans(message)] if self.trees else []
