"""Server-sent events: the last hour, then the destinations each second, and every ten seconds the cluster's nodes, or
why they can't be read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.responses import Response, StreamingResponse

from headrace import runtime, tasks
from headrace.errors import HeadraceError
from headrace.http.access import Denied
from headrace.http.facts import Facts
from headrace.http.health import health
from headrace.http.history import History

EVENTS = "text/event-stream"
_EACH = 1.0
_NODES_EACH = 10.0
_STREAMS = 32
"""Maximum number of streams at once."""


class Events:
    """The event streams of one server; end() ends them all."""

    def __init__(self, facts: Facts, history: History) -> None:
        self._facts, self._history = facts, history
        self._ended = asyncio.Event()
        self._streams = 0

    def end(self) -> None:
        self._ended.set()

    def response(self) -> Response:
        """Returns one more stream. Raises Denied."""
        if self._streams >= _STREAMS:
            raise Denied(503, f"{_STREAMS} streams of events are open already", {"retry-after": "10"})
        return StreamingResponse(self._stream(), media_type=EVENTS)

    async def _stream(self) -> AsyncIterator[bytes]:
        self._streams += 1
        facts, asked = self._facts, 0.0
        nodes: asyncio.Task[bytes] | None = None
        try:
            yield _event("history", {name: self._history.of(name) for name in facts.statuses})
            while not self._ended.is_set():
                yield _event("status", health(facts)[1])
                now = runtime.monotonic()
                if nodes is not None and nodes.done():
                    yield nodes.result()
                    nodes = None
                if facts.cluster is not None and nodes is None and now - asked > _NODES_EACH:
                    asked = now
                    # Separate from the status, which must not wait for an unavailable cluster service.
                    nodes = asyncio.create_task(_nodes_event(facts), name="check the nodes")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EACH):
                        await self._ended.wait()
        finally:
            self._streams -= 1
            await tasks.cancel(nodes)


def _event(name: str, body: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(body))


async def _nodes_event(facts: Facts) -> bytes:
    try:
        return _event("nodes", await nodes_of(facts))
    except Denied as denied:
        return _event("unseen", denied.page)


async def nodes_of(facts: Facts) -> dict[str, Any]:
    """Returns the daemons that share destinations, and who has which; only this one without a cluster service. Raises
    Denied."""
    if facts.cluster is None:
        held = {name: {"holder": facts.node} for name in facts.statuses}
        return {"node": facts.node, "nodes": {facts.node: {}}, "drained": [], "destinations": held}
    try:
        view = await facts.cluster.view()
    except HeadraceError as error:
        raise Denied(503, str(error), help=error.help) from None
    return {
        "node": facts.node,
        "nodes": view.members,
        "drained": sorted(view.drained),
        "destinations": {
            name: {"holder": one.holder, "address": one.address, "epoch": one.epoch, "waiting": list(one.waiting)}
            for name, one in view.assignments.items()
        },
    }
