"""The name of an index as an alias, which is moved from one index to another in one step."""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError

_NUMBERED = re.compile(r"(.+)-(\d{6})")
_TRIES = 5
"""How often a move is tried while consumers create indexes of the names."""


class Behind(NamedTuple):
    """What a name refers to: indexes with an alias, or the index of that name, or nothing."""

    indexes: tuple[str, ...]
    is_alias: bool


def behind(cluster: Cluster, name: str) -> Behind:
    """Returns what a name refers to. Raises ApiError and TransportError."""
    if found := cluster.call("GET", ("_alias", name), missing={}):
        return Behind(tuple(sorted(found)), True)
    return Behind((name,) if cluster.exists(name) else (), False)


def next_index(cluster: Cluster, name: str) -> str:
    """Returns the name of an index that does not exist yet, NAME-000002 and so on. Raises ApiError and
    TransportError."""
    number = 1
    for one in behind(cluster, name).indexes:
        found = _NUMBERED.fullmatch(one)
        number = max(number, int(found[2]) if found and found[1] == name else 1)
    while True:
        number += 1
        wanted = f"{name}-{number:06d}"
        if not cluster.exists(wanted):
            return wanted


def move(cluster: Cluster, moves: dict[str, str]) -> None:
    """Moves each name to another index, all in one step. An index that has the name itself is deleted in the same step,
    because an alias can't have the name of an index. Raises ApiError and TransportError."""
    for left in reversed(range(_TRIES)):
        try:
            cluster.call("POST", "_aliases", {"actions": _actions(cluster, moves)})
            return
        except ApiError as error:
            if not left or error.type != "invalid_alias_name_exception":
                raise  # otherwise a consumer has created an index of that name meanwhile


def _actions(cluster: Cluster, moves: dict[str, str]) -> list[dict[str, dict[str, str]]]:
    actions: list[dict[str, dict[str, str]]] = []
    for name, into in moves.items():
        indexes, is_alias = behind(cluster, name)
        for one in indexes:
            if one != into:
                actions.append(
                    {"remove": {"index": one, "alias": name}} if is_alias else {"remove_index": {"index": one}}
                )
        actions.append({"add": {"index": into, "alias": name}})
    return actions
