"""`headrace parked`: shows messages that the sink refused, sends them again, or discards them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import orjson

from headrace import runtime
from headrace.cli.common import (
    CommandRefused,
    add_command,
    aligned,
    confirmed,
    coordinated,
    open_store,
    print_json,
    require_answer,
    time_text,
)
from headrace.cli.common import destination as named
from headrace.cli.terminal import show_table
from headrace.errors import ConfigError
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkingState, ParkingStore
from headrace.rules.patterns import compile_filter
from headrace.settings.destination import DestinationSettings, Settings
from headrace_common.arguments import positive

DESCRIPTION = (
    "Messages that the sink refused wait where [parking] says, with later ones about the same rows. "
    "The daemon sends them again by itself until [parking] attempts; then they need an operator. Exit status 0: done; "
    "1: something failed, is refused, or there is no such message; 2: the configuration or the command is wrong."
)
_LIST = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add = partial(add_command, parser.add_subparsers(metavar="COMMAND", required=True))
    listing = add("list", "list the messages, in the order in which they wait", _list)
    _add_filters(listing)
    listing.add_argument("--limit", type=positive, default=_LIST, metavar="N", help="so many (default: %(default)s)")
    listing.add_argument("--json", action="store_true", help="as JSON, all of them")

    show = add("show", "show one message whole", _show)
    show.add_argument("number", type=int, metavar="NUMBER", help="its number in the list")
    show.add_argument("--json", action="store_true", help="as JSON")

    for name, text, call in (
        ("retry", "send messages again now, and count their attempts from zero", _retry),
        ("discard", "give messages up: nobody will ever get them from headrace", _discard),
    ):
        command = add(name, text, call)
        command.add_argument("numbers", type=int, nargs="*", metavar="NUMBER", help="their numbers in the list")
        command.add_argument("--all", action="store_true", help="all, or all that the filters leave")
        _add_filters(command)
        command.add_argument("--json", action="store_true", help="as JSON")
        if name == "discard":
            command.add_argument("--yes", action="store_true", help="do not ask")


def _add_filters(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state", choices=["PENDING", "NEEDS_OPERATOR"], type=str.upper, help="only those in this state"
    )
    command.add_argument("--topic", metavar="TOPIC", help="only those for this topic or routing key")
    command.add_argument("--table", metavar="TABLES", help="only those about these tables, as in [filter] include")
    command.add_argument("--id", metavar="TEXT", help="only those whose headrace-id holds the text")


async def _list(settings: Settings, given: argparse.Namespace) -> int:
    async with _opened(settings, given.name) as store:
        entries = _chosen(await store.entries(), given)
    if given.json:
        print_json([_plain(entry) for entry in entries])
        return 0
    if not entries:
        print(f"{given.name}: no parked messages")
        return 0
    _show_entries(entries[: given.limit])
    if len(entries) > given.limit:
        print(f"... and {len(entries) - given.limit:,} more (--limit, --json)")
    return 0


async def _show(settings: Settings, given: argparse.Namespace) -> int:
    async with _opened(settings, given.name) as store:
        (entry,) = _by_number(await store.entries(), [given.number], given.name)
        contents = await store.contents([given.number])
    content = contents.get(given.number)
    if content is None:
        raise CommandRefused(f"{given.name} has no parked message {given.number} any more")
    if given.json:
        print_json({**_plain(entry), **_plain_content(content)})
        return 0
    print(aligned([(key, _text(value)) for key, value in {**_plain(entry), **_plain_content(content)}.items()], ""))
    return 0


async def _retry(settings: Settings, given: argparse.Namespace) -> int:
    _require_choice(given)
    async with _opened(settings, given.name) as store:
        entries = _picked(await store.entries(), given)
        now = runtime.now_us()
        fresh = [replace(entry, attempts=0, state=ParkingState.PENDING, due_us=now) for entry in entries]
        count = await store.update(None, fresh) if fresh else 0
    return _reported(given, count, "are sent again as soon as a daemon runs the destination")


async def _discard(settings: Settings, given: argparse.Namespace) -> int:
    _require_choice(given)
    require_answer(given.yes)
    async with _opened(settings, given.name) as store:
        entries = _picked(await store.entries(), given)
        if entries and not given.yes:
            _show_entries(entries[:_LIST])
            print(f"{len(entries):,} messages of {given.name} are given up; nobody will get them.")
            if not await confirmed(given.yes):
                return 1
            now = {entry.number: entry.id for entry in await store.entries()}  # a number may be another's by now
            entries = [entry for entry in entries if now.get(entry.number) == entry.id]
        count = await store.remove(None, [entry.number for entry in entries]) if entries else 0
    return _reported(given, count, "were given up")


def _reported(given: argparse.Namespace, count: int, what: str) -> int:
    if given.json:
        print(orjson.dumps({"destination": given.name, "messages": count}).decode())
    else:
        print(f"{given.name}: {count:,} messages {what}")
    return 0 if count else 1


@contextlib.asynccontextmanager
async def _opened(settings: Settings, name: str) -> AsyncIterator[ParkingStore]:
    destination = named(settings, name)
    async with coordinated(settings) as shared:
        store, _ = shared.parking_stores(destination)
        if store is None:
            raise CommandRefused(_why_none(destination), remedy="see docs/parked-messages.md")
        if destination.parking.store == "state":
            await open_store(shared, destination)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


def _why_none(destination: DestinationSettings) -> str:
    key = destination.sink.capabilities.parks_by
    why = f'[sink] {key} is not "park"' if key else f"a {destination.sink.type} sink refuses none"
    return f"{destination.name} parks no messages: {why}"


def _require_choice(given: argparse.Namespace) -> None:
    filters = any((given.state, given.topic, given.table, given.id))
    if not given.numbers and not given.all and not filters:
        raise ConfigError(["which messages? Give their numbers, a filter, or --all"])
    if given.numbers and (given.all or filters):
        raise ConfigError(["numbers go without filters and --all"])


def _picked(entries: list[ParkedEntry], given: argparse.Namespace) -> list[ParkedEntry]:
    if given.numbers:
        return _by_number(entries, given.numbers, given.name)
    return _chosen(entries, given)


def _by_number(entries: list[ParkedEntry], numbers: Sequence[int], name: str) -> list[ParkedEntry]:
    known = {entry.number: entry for entry in entries}
    if missing := [number for number in numbers if number not in known]:
        raise CommandRefused(f"{name} has no parked message {', '.join(map(str, missing))}")
    return [known[number] for number in dict.fromkeys(numbers)]


def _chosen(entries: list[ParkedEntry], given: argparse.Namespace) -> list[ParkedEntry]:
    try:
        tables = compile_filter(given.table or "", "--table")
    except ValueError as error:
        raise ConfigError([f"--table: {error}"]) from None
    return [
        entry
        for entry in entries
        if (not given.state or entry.state == given.state)
        and (not given.topic or entry.topic == given.topic)
        and (not given.id or given.id in entry.id)
        and (not tables or any(one.fullmatch(table) for table in entry.unit.tables for one in tables))
    ]


def _show_entries(entries: Sequence[ParkedEntry]) -> None:
    headers = ("NUMBER", "STATE", "ATTEMPTS", "NEXT", "TOPIC", "TABLES", "KEYS", "ID", "REASON")
    show_table(headers, [_cells(entry) for entry in entries])


def _cells(entry: ParkedEntry) -> tuple[str, ...]:
    return (
        str(entry.number),
        str(entry.state),
        str(entry.attempts),
        "by an operator" if entry.state is ParkingState.NEEDS_OPERATOR else time_text(entry.due_us),
        f"{entry.topic}[{entry.partition}]",
        ", ".join(entry.unit.tables),
        ", ".join(entry.unit.keys),
        entry.id,
        entry.reason,
    )


def _plain(entry: ParkedEntry) -> dict[str, Any]:
    """Returns an entry for JSON."""
    facts = asdict(entry)
    unit = facts.pop("unit")
    times = {f"{what}_at": time_text(facts.pop(f"{what}_us")) for what in ("created", "tried", "due")}
    return {**facts, "tables": unit.tables, "keys": unit.keys, **times}


def _plain_content(content: ParkedContent) -> dict[str, Any]:
    return {
        "key": _readable(content.key),
        "tag": content.tag,
        "headers": {name: _readable(value) for name, value in content.headers},
        "body": _readable(content.body),
    }


def _readable(value: bytes | None) -> str | None:
    """Returns text unchanged; other bytes as 0x and hexadecimal digits."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None else orjson.dumps(value).decode()
