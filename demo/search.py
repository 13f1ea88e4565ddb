"""The search of the demo: services by the names of their item and type and by the description, ranked and marked."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Any

from demo.compare import INDEX
from headrace_documents.elastic.cluster import Cluster

FIELDS = ("item_name^6", "type.name^3", "item_description")
PHRASE_BOOST = 10
LONGEST = 64
"""Characters of a text to search for."""
_WORD = re.compile(r"([\u3400-\u9fff]+)|[^\W\u3400-\u9fff]+")
# Highlighted parts come between these. Nobody can write them into a row: they differ at each start.
_OPEN, _CLOSE = (f"{{{secrets.token_hex(8)}}}" for _ in range(2))

Segments = list[tuple[str, bool]]
"""A text in parts, each with whether the search has found it."""


@dataclass(frozen=True)
class Hit:
    """One service that was found; `marked` has the texts that were searched, in parts."""

    id: str
    source: dict[str, Any]
    marked: dict[str, Segments]


@dataclass(frozen=True)
class Found:
    """How many services there are in all, and the first of them, best first."""

    total: int
    hits: list[Hit]


def pairs(text: str) -> list[str]:
    """What is searched for besides the whole text: other words as they are, and of each run of Chinese characters all
    pairs of neighbours. The standard tokenizer makes a token of each character; one alone would be in most names."""
    made: list[str] = []
    for word in _WORD.finditer(text):
        whole = word[0]
        made += [whole[at : at + 2] for at in range(len(whole) - 1)] if word[1] and len(whole) > 2 else [whole]
    return list(dict.fromkeys(made))


def query(text: str) -> dict[str, Any]:
    """All services where the text is empty. Else those that have a part of it; the whole of it counts most, and a
    name more than a type's, and that more than a description."""
    text = text[:LONGEST]
    parts = pairs(text)
    if not parts:
        return {"match_all": {}} if not text.strip() else {"match_none": {}}
    wanted = [_phrase(text, PHRASE_BOOST), *(_phrase(part, 1) for part in parts)]
    return {"bool": {"should": wanted, "minimum_should_match": 1}}


def _phrase(text: str, boost: int) -> dict[str, Any]:
    return {"multi_match": {"query": text, "type": "phrase", "fields": list(FIELDS), "boost": boost}}


def search(cluster: Cluster, text: str, size: int = 5) -> Found:
    """Searches what a search finds now, without a refresh of its own. Raises ApiError and TransportError."""
    fields = [name.partition("^")[0] for name in FIELDS]
    wanted = {
        "query": query(text),
        "size": size,
        "track_total_hits": True,
        "sort": ["_score", {"id": "asc"}],
        "highlight": {"pre_tags": [_OPEN], "post_tags": [_CLOSE], "number_of_fragments": 0, "fields": _each(fields)},
    }
    found = cluster.call("POST", (INDEX, "_search"), wanted)["hits"]
    return Found(int(found["total"]["value"]), [_hit(one, fields) for one in found["hits"]])


def _each(fields: list[str]) -> dict[str, Any]:
    return {name: {} for name in fields}


def _hit(hit: dict[str, Any], fields: list[str]) -> Hit:
    marked: dict[str, Segments] = {}
    for name in fields:
        lines = hit.get("highlight", {}).get(name)
        if lines:
            marked[name] = segments(lines[0])
        elif (plain := _value(hit["_source"], name)) is not None:
            marked[name] = [(plain, False)]
    return Hit(hit["_id"], hit["_source"], marked)


def _value(source: dict[str, Any], path: str) -> str | None:
    value: Any = source
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def prices(source: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of a service, the one by the unit of its item first."""
    return sorted(source["prices"], key=lambda one: one["unit"] != source.get("item_unit"))


def segments(text: str) -> Segments:
    """A highlighted text in parts. Those that only touch are one: each character is a token of its own."""
    made: Segments = []
    for at, part in enumerate(text.replace(_CLOSE + _OPEN, "").split(_OPEN)):
        marked, _, rest = part.partition(_CLOSE) if at else ("", "", part)
        made += [(one, found) for one, found in ((marked, True), (rest, False)) if one]
    return made
