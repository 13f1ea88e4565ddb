"""Joins small waiting batches into one for each topic and partition, so that each is not a request of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from headrace.model import MessageBatch

SMALL = 64 * 1024
"""Maximum size in bytes of a batch that may be joined; a larger one is worth a request."""
_MOST = 4 * SMALL
"""Maximum total size in bytes."""

Target = tuple[str, int]


def target_of(batch: MessageBatch) -> Target:
    """Returns topic and partition."""
    return batch.topic, batch.partition


def together(waiting: Sequence[MessageBatch], *, one_log: bool = False) -> int:
    """Returns how many batches, from the first on, may be handed over together; at least 1. They end with a position,
    because a batch without one is part of what follows. Batches of a sink that parks or tags messages are not joined.
    `one_log`: the sink writes all topics into one stream, so only batches of one topic may go together: joined() would
    put all messages of the first topic before those of the second."""
    count, size = 1, 0
    target: Target | None = None
    for number, batch in enumerate(waiting, 1):
        size += batch.size
        if batch.size > SMALL or size > _MOST or batch.barrier or batch.units is not None or batch.tags is not None:
            break
        if batch.values and not batch.size:
            break  # a sink has put it on disk and may get it again: it can have any size
        if one_log and batch.values:
            if target is not None and target_of(batch) != target:
                break
            target = target_of(batch)
        if batch.position is not None:
            count = number
    return count


def joined(batches: Sequence[MessageBatch]) -> list[MessageBatch]:
    """Returns the same messages in one batch for each target, in order within each. The last batch has the position."""
    targets: dict[Target, list[MessageBatch]] = {}
    for batch in batches:
        if batch.values:
            targets.setdefault(target_of(batch), []).append(batch)
    made = [_joined(parts) for parts in targets.values()] or [MessageBatch("", 0)]
    made[-1].position = batches[-1].position
    made[-1].schema_entries = tuple(chain.from_iterable(batch.schema_entries for batch in batches))
    return made


def _joined(parts: Sequence[MessageBatch]) -> MessageBatch:
    last = parts[-1]
    keys: list[bytes | None] | None = None
    if any(part.keys is not None for part in parts):
        keys = list(chain.from_iterable(part.keys or [None] * len(part.values) for part in parts))
    return replace(
        last,
        values=list(chain.from_iterable(part.values for part in parts)),
        headers=list(chain.from_iterable(part.headers for part in parts)),
        keys=keys,
        size=sum(part.size for part in parts),
        rows=sum(part.rows for part in parts),
        received=parts[0].received,
        position=None,
        schema_entries=(),
    )
