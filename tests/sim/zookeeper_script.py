"""One script of operations by the project's adapter; what it notes is the same of a real ensemble and of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from headrace.adapters.zookeeper.service import ZooKeeper
from headrace.ports.lock_service import Check, Create, Delete, Link, Node, Op, Refused, ServiceError, Set

Notes = list[tuple[str, Any]]
LIMIT = 10.0
"""Seconds that an answer may take."""


class Client:
    """An open adapter with what it reported."""

    def __init__(self, service: ZooKeeper) -> None:
        self.service = service
        self.links = list[Link]()
        self.session = 0
        self.granted = 0.0
        self._changed = asyncio.Event()

    async def opened(self) -> Client:
        self.service.open(self._take)
        await self.until(lambda: self.links[-1:] == ["connected"])
        return self

    def _take(self, link: Link, session: int, granted: float) -> None:
        self.links.append(link)
        if session:
            self.session, self.granted = session, granted
        self._changed.set()

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not ready():
                self._changed.clear()
                await self._changed.wait()

    async def do(self, *operations: Op) -> Any:
        """The new versions, or the error."""
        return await answer(self.service.multi(operations, LIMIT))

    async def do_plainly(self, *operations: Op) -> Any:
        """The same without the parents that the adapter creates."""
        return await answer(self.service._multi(operations, LIMIT))

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        return await self.service.get(path, LIMIT, watch)

    async def children(self, path: str) -> list[str]:
        """Sorted: servers promise no order."""
        return sorted(await self.service.children(path, LIMIT))

    async def sync(self) -> None:
        await self.service.sync(LIMIT)

    async def close(self) -> None:
        await self.service.close()


Open = Callable[[], Awaitable[Client]]


class Faults(Protocol):
    """Faults of the connections of one client."""

    def cut(self) -> None:
        """Lets nothing through."""

    def heal(self) -> None:
        """Ends cut()."""

    async def reset(self) -> None:
        """Resets the present connection."""


async def answer(work: Awaitable[Any]) -> Any:
    """What comes of a call: a value, or the error's kind, reason, index and text."""
    try:
        return await work
    except Refused as refused:
        return type(refused).__name__, refused.why, refused.index, str(refused)
    except ServiceError as error:
        return type(error).__name__, str(error)


async def script(open_: Open, root: str) -> Notes:
    """Plays everything below `root`, which nobody else has."""
    notes: Notes = []
    for part in (_nodes, _multis, _ephemerals, _watches, _others):
        found: Notes = []
        one, two = await open_(), await open_()
        await part(one, two, f"{root}/{part.__name__[1:]}", found)
        await one.close()
        await two.close()
        notes += [(f"{part.__name__}: {what}", _plain(said, root)) for what, said in found]
    return notes


def _plain(said: Any, root: str) -> Any:
    if isinstance(said, str):
        return said.replace(root, "/R")
    return [_plain(one, root) for one in said] if isinstance(said, list | tuple) else said


def _seen(node: Node | None, *sessions: int) -> Any:
    """A node without the number of its transaction; the owner is which of the sessions it is."""
    if node is None:
        return None
    owner = sessions.index(node.owner) + 1 if node.owner in sessions else node.owner
    return node.data, node.version, owner


async def _nodes(one: Client, two: Client, at: str, notes: Notes) -> None:
    notes.append(("nothing there", [await one.get(at), await one.children(at), await one.service.problem(at, LIMIT)]))
    notes.append(("a missing parent", await one.do_plainly(Create(f"{at}/a/b", b"x"))))
    notes.append(("created with its parents", await one.do(Create(f"{at}/a/b", b"x"))))
    notes.append(("the parent", _seen(await one.get(f"{at}/a"))))
    notes.append(("created again", await one.do(Create(f"{at}/a/b", b"y"))))
    notes.append(("read", _seen(await one.get(f"{at}/a/b"))))
    for version in (0, 0, 1, -1, 7, -1):
        notes.append((f"set at {version}", await one.do(Set(f"{at}/a/b", b"at %d" % version, version))))
        notes.append((f"checked at {version}", await one.do(Check(f"{at}/a/b", version))))
    notes.append(("read again", _seen(await one.get(f"{at}/a/b"))))
    notes.append(("empty data", [await one.do(Set(f"{at}/a/b", b"")), _seen(await one.get(f"{at}/a/b"))]))
    missing = f"{at}/none"
    for operation in (Set(missing, b""), Check(missing, 0), Check(missing, -1), Delete(missing), Delete(missing, 3)):
        notes.append((f"a missing node: {type(operation).__name__}", await one.do(operation)))
    notes.append(("deleted with children", await one.do(Delete(f"{at}/a"))))
    notes.append(("deleted with children at another version", await one.do(Delete(f"{at}/a", 5))))
    await one.do(Create(f"{at}/a/c", b""), Create(f"{at}/a/d", b""), Create(f"{at}/a/d/e", b""))
    notes.append(("children", [await one.children(f"{at}/a"), await one.children(f"{at}/a/d"), await one.children(at)]))
    notes.append(("children do not change a parent", _seen(await one.get(f"{at}/a"))))
    notes.append(("deleted at another version", await one.do(Delete(f"{at}/a/b", 1))))
    notes.append(("deleted", [await one.do(Delete(f"{at}/a/b", 5)), await one.get(f"{at}/a/b")]))
    await two.sync()
    notes.append(("another sees it", [await two.get(f"{at}/a/b"), await two.children(f"{at}/a")]))
    notes.append(("created anew", [await two.do(Create(f"{at}/a/b", b"2")), _seen(await two.get(f"{at}/a/b"))]))


async def _multis(one: Client, two: Client, at: str, notes: Notes) -> None:
    await one.do(Create(f"{at}/a", b"0"))
    a, b, c = f"{at}/a", f"{at}/b", f"{at}/c"
    for what, operations in _failing(a, b, c).items():
        notes.append((what, await one.do_plainly(*operations)))
        notes.append((f"after {what}", [_seen(await one.get(path)) for path in (a, b, c)]))
    notes.append(("all kinds", await one.do(Create(b, b"b"), Set(a, b"1"), Check(a, 1), Set(a, b"2", 1), Delete(b, 0))))
    notes.append(("after it", [_seen(await one.get(path)) for path in (a, b)]))
    notes.append(("made and changed", await one.do(Create(b, b""), Set(b, b"x", 0), Set(b, b"y"), Check(b, 2))))
    notes.append(("after it", _seen(await one.get(b))))
    notes.append(("deleted and made", await one.do(Delete(b), Create(b, b"new"), Create(f"{b}/child", b""))))
    notes.append(("after it", [_seen(await one.get(b)), await one.children(b)]))
    notes.append(("a child and its parent deleted", await one.do(Delete(f"{b}/child"), Delete(b))))
    notes.append(("made and deleted", [await one.do(Create(b, b""), Delete(b)), await one.get(b)]))
    notes.append(("a parent made that is needed before", await one.do_plainly(Create(f"{c}/d", b""), Create(c, b""))))
    notes.append(("parents that the adapter makes", await one.do(Create(f"{c}/d", b""), Create(f"{b}/d/e", b""))))
    await one.do(Create(f"{at}/first", b""), Create(f"{at}/second", b""))
    await two.do(Create(f"{at}/third", b""))
    await one.sync()
    names = ("a", "first", "second", "third")
    created = [node.created for name in names if (node := await one.get(f"{at}/{name}"))]
    notes.append(("in which transaction", [sorted(set(created)).index(number) for number in created]))


def _failing(a: str, b: str, c: str) -> dict[str, Sequence[Op]]:
    return {
        "the first fails": [Set(a, b"x", 7), Create(b, b"")],
        "the second fails": [Create(b, b""), Set(a, b"x", 7), Create(c, b"")],
        "the last fails": [Create(b, b""), Set(a, b"x"), Check(c, 0)],
        "two fail": [Set(a, b"x", 7), Check(c, 0)],
        "made twice": [Create(b, b""), Create(b, b"")],
        "deleted twice": [Create(b, b""), Delete(b), Delete(b)],
        "a parent that is deleted": [Create(b, b""), Delete(b), Create(f"{b}/x", b"")],
        "a parent that gets a child": [Create(b, b""), Create(f"{b}/x", b""), Delete(b)],
        "the version before its change": [Set(a, b"x", 0), Check(a, 0)],
    }


async def _ephemerals(one: Client, two: Client, at: str, notes: Notes) -> None:
    sessions = one.session, two.session
    notes.append(("sessions", [sessions[0] != 0, sessions[0] != sessions[1], one.granted, one.links[:]]))
    notes.append(("made", await one.do(Create(f"{at}/mine", b"1", ephemeral=True), Create(f"{at}/kept", b""))))
    await two.sync()
    notes.append(("seen by its owner", _seen(await one.get(f"{at}/mine"), *sessions)))
    notes.append(("seen by another", _seen(await two.get(f"{at}/mine"), *sessions)))
    notes.append(("made by another", await two.do(Create(f"{at}/mine", b"2", ephemeral=True))))
    notes.append(("changed by another", await two.do(Set(f"{at}/mine", b"3", 0))))
    notes.append(("whose it is now", _seen(await two.get(f"{at}/mine"), *sessions)))
    notes.append(("a child of it", await two.do_plainly(Create(f"{at}/mine/child", b""))))
    notes.append(("a child of one that is made", await two.do(Create(f"{at}/e", b"", True), Create(f"{at}/e/x", b""))))
    await one.do(Create(f"{at}/left", b"", ephemeral=True), Create(f"{at}/again", b"", ephemeral=True))
    notes.append(("deleted by another", await two.do(Delete(f"{at}/left", 0))))
    await two.do(Create(f"{at}/left", b"two's"))
    await one.do(Delete(f"{at}/again"), Create(f"{at}/again", b"kept"))
    fired = list[str]()
    await two.get(f"{at}/mine", lambda: fired.append("mine"))
    await two.get(f"{at}/kept", lambda: fired.append("kept"))
    await one.close()
    await two.sync()
    notes.append(("after its end", [await two.children(at), fired[:]]))
    notes.append(("made anew", await two.do(Create(f"{at}/mine", b"2", ephemeral=True))))
    notes.append(("whose it is then", _seen(await two.get(f"{at}/mine"), *sessions)))
    notes.append(("a call after the end", await answer(one.service.get(at, 1.0))))
    await one.close()
    notes.append(("links", [one.links, two.links]))


async def _watches(one: Client, two: Client, at: str, notes: Notes) -> None:
    await one.do(Create(f"{at}/a", b""), Create(f"{at}/b", b""), Create(f"{at}/last", b""))
    fired = list[str]()

    def note(what: str) -> Callable[[], None]:
        return lambda: fired.append(what)

    async def step(what: str, *operations: Op, by: Client = two) -> None:
        """An event after a change comes after the events of that change. An answer may not: a client reports both by
        different threads."""
        said, last = await by.do(*operations), asyncio.Event()
        await one.sync()
        await one.get(f"{at}/last", last.set)
        await two.do(Set(f"{at}/last", b""))
        await asyncio.wait_for(last.wait(), LIMIT)
        notes.append((what, [said, sorted(fired)]))
        fired.clear()

    await one.get(f"{at}/a", note("a"))
    await one.get(f"{at}/a", note("a again"))
    await one.get(f"{at}/b", note("b"))
    await step("checked", Check(f"{at}/a", 0))
    await step("refused", Set(f"{at}/a", b"", 7))
    await step("a child is made", Create(f"{at}/a/child", b""))
    await step("changed", Set(f"{at}/a", b"1"))
    await step("changed again", Set(f"{at}/a", b"2"))
    await step("deleted", Delete(f"{at}/b"))
    await one.get(f"{at}/b", note("missing b"))
    await step("another is made", Create(f"{at}/c", b""))
    await step("made", Create(f"{at}/b", b""))
    await step("changed after it", Set(f"{at}/b", b""))
    await one.get(f"{at}/b", note("b"))
    await one.get(f"{at}/a", note("a"))
    await step(
        "several in a multi", Delete(f"{at}/b"), Create(f"{at}/b", b""), Set(f"{at}/a", b""), Set(f"{at}/b", b"")
    )
    await one.get(f"{at}/a", note("a"))
    await step("changed by its own session", Set(f"{at}/a", b""), by=one)
    await one.get(f"{at}/a", note("a"))
    await one.get(f"{at}/gone", note("gone"))
    await one.close()
    # Whether a client reports the watches that are left at its own close depends on its threads.
    notes.append(("after the close", sorted(set(fired) - {"a", "gone"})))


async def _others(one: Client, two: Client, at: str, notes: Notes) -> None:
    await one.do(Create(f"{at}/a", b""))
    notes.append(("no problem", [await one.service.problem(f"{at}/x/y", LIMIT), await one.children(at)]))
    one.service.write_soon(f"{at}/soon", b"1")
    await one.sync()
    notes.append(("written soon", _seen(await one.get(f"{at}/soon"))))
    one.service.write_soon(f"{at}/soon", b"2")
    async with asyncio.timeout(LIMIT):
        while _seen(node := await one.get(f"{at}/soon")) != (b"2", 1, 0):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.02)
    notes.append(("written again", _seen(node)))
    one.service.write_soon(f"{at}/none/soon", b"1")
    await one.sync()
    notes.append(("written soon without a parent", await one.get(f"{at}/none/soon")))
    proved = await answer(one.service.prove([Check(f"{at}/a", 0)], LIMIT))
    notes.append(("proved", isinstance(proved, float)))
    notes.append(("not proved", await answer(one.service.prove([Check(f"{at}/a", 3)], LIMIT))))
    notes.append(("many", await one.do(*(Create(f"{at}/many-{number}", b"") for number in range(300)))))
    notes.append(("all there", len(await one.children(at))))


async def lost_script(one: Client, two: Client, faults: Faults, at: str) -> Notes:
    """Breaks the connection of one client, for a moment and until its session is over."""
    notes: Notes = []
    first = one.session
    await one.do(Create(f"{at}/mine", b"1", ephemeral=True), Create(f"{at}/kept", b""))
    await two.sync()
    fired = list[str]()
    over = asyncio.Event()
    await one.get(f"{at}/kept", lambda: fired.append("broken"))
    await faults.reset()
    await one.until(lambda: one.links == ["connected", "suspended", "connected"])
    async with asyncio.timeout(LIMIT):
        while not fired:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    notes.append(("reset", [one.session == first, fired[:], _seen(await one.get(f"{at}/mine"), first)]))
    await two.get(f"{at}/mine", over.set)
    await one.get(f"{at}/kept", lambda: fired.append("cut off"))
    faults.cut()
    pending = asyncio.create_task(one.do(Set(f"{at}/kept", b"x")))
    await one.until(lambda: one.links[-1] == "suspended")
    notes.append(("what was asked when it was cut off", await pending))
    notes.append(("what is asked then", await one.do(Set(f"{at}/kept", b"y"))))
    async with asyncio.timeout(LIMIT):
        while len(fired) < 2:  # noqa: ASYNC110 - kazoo's threads report watches after the link
            await asyncio.sleep(0.02)
    notes.append(("watches", fired[:]))
    async with asyncio.timeout(60):
        await over.wait()
    notes.append(("seen by another", [await two.children(at), _seen(await two.get(f"{at}/kept"))]))
    notes.append(("made by another", await two.do(Create(f"{at}/mine", b"2", ephemeral=True))))
    faults.heal()
    await one.until(lambda: one.links[-2:] == ["lost", "connected"])
    await one.sync()
    notes.append(
        ("a new session", [one.session != first, one.links[:], _seen(await one.get(f"{at}/mine"), two.session)])
    )
    notes.append(("it works", await one.do(Create(f"{at}/again", b"", ephemeral=True), Set(f"{at}/kept", b"z"))))
    notes.append(("granted", [one.granted, two.granted]))
    return [(what, _plain(said, at)) for what, said in notes]
