"""The command `dead-letters list|show|retry|discard` of the consumers: messages that could not be applied."""

from __future__ import annotations

import argparse
import json
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import orjson

from headrace_common.arguments import positive
from headrace_common.printable import printable, printable_json, printable_lines
from headrace_documents.cli import CommandLine
from headrace_documents.errors import MessageError, SettingsError
from headrace_documents.formats.changes import Headers, Rows, Statement
from headrace_documents.messages import read

MAX_REASON = 1000
"""Characters of a reason in a header; mapping errors can quote whole documents."""
_SHOWN_REASON = 160
_SHOWN_KINDS = 20
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\d+")
"""The parts that differ between two reasons of the same kind."""


@dataclass(slots=True)
class Facts:
    """The facts of a dead letter, without its content."""

    id: str
    time: str
    table: str
    """database.table; "" if the message does not say it."""
    key: str
    """The primary key of its first row, else the record's key."""
    reason: str
    size: int

    def more(self) -> dict[str, Any]:
        """Returns further facts of a consumer, in the order in which they are shown."""
        return {}

    def page(self) -> dict[str, Any]:
        """Returns the facts for --json."""
        facts = {"id": self.id, "time": self.time, "table": self.table, "key": self.key, "reason": self.reason}
        return {**facts, **self.more(), "bytes": self.size}

    def line(self) -> str:
        """Returns the facts on one line, for people."""
        parts = (self.id, self.time, self.table, self.key, shortened(self.reason, _SHOWN_REASON))
        return "  ".join(printable(part or "-") for part in parts)


FactsT = TypeVar("FactsT", bound=Facts)


class Content(NamedTuple):
    """A dead letter's content: the message as received, with its own headers."""

    key: bytes | None
    headers: Sequence[tuple[str, Any]]
    value: bytes | None

    def page(self) -> dict[str, Any]:
        """Returns the content for --json; bytes that are no text are escaped."""
        headers = {name: _text(value) for name, value in self.headers}
        return {"record_key": _text(self.key), "headers": headers, "body": _text(self.value)}


class DeadLetters(ABC, Generic[FactsT]):
    """The dead letters of a consumer, for a command. Its methods raise ConsumerError."""

    note = ""
    """A line below the list."""
    is_kept_nowhere = False
    """Whether a discarded message is lost at once, so that it is printed completely before."""

    @property
    @abstractmethod
    def all(self) -> Sequence[FactsT]:
        """Returns the existing ones, in order."""

    @abstractmethod
    def content(self, one: FactsT) -> Content | None:
        """Returns the content of one; None if it no longer exists."""

    @abstractmethod
    def retry(self, chosen: Sequence[FactsT]) -> Mapping[str, str]:
        """Sends messages unchanged to where they came from; returns by id why others remain."""

    @abstractmethod
    def discard(self, chosen: Sequence[FactsT]) -> None:
        """Discards messages."""


Open = Callable[[Any, argparse.Namespace], AbstractContextManager[DeadLetters[Any]]]
"""Opens them for a command, by configuration and options."""


def add_dead_letters(
    line: CommandLine, opened: Open, more: Callable[[argparse.ArgumentParser], object] = lambda _: None
) -> None:
    """Adds the commands. `more` adds further options of a consumer."""
    group = line.group("dead-letters", "list, show, retry or discard messages that could not be applied")
    for name, text, action in (
        ("list", "list the dead letters; nothing changes", _list),
        ("show", "show one dead letter with all that is in it; nothing changes", _show),
        ("retry", "send messages to where they came from, unchanged", _retry),
        ("discard", "give messages up, after a question", _discard),
    ):
        command = line.add(name, text, _calling(action, opened), group)
        if name == "show":
            command.add_argument("id", metavar="ID", help="as list shows it")
        if name in ("retry", "discard"):
            command.add_argument("ids", nargs="*", metavar="ID", help="as list shows it")
            command.add_argument("--all", action="store_true", help="all, or all that the filters leave")
        if name != "show":
            command.add_argument("--reason", type=_regex, metavar="REGEX", help="those whose reason has a match of it")
            command.add_argument("--table", type=_regex, metavar="REGEX", help="those whose database.table it matches")
        if name in ("list", "show"):
            command.add_argument("--json", action="store_true", help="one JSON object a line")
        more(command)
    group.choices["list"].add_argument(
        "--limit", type=positive, default=1000, metavar="N", help="most lines (default: %(default)s)"
    )
    group.choices["retry"].add_argument("--dry-run", action="store_true", help="show which; nothing changes")
    group.choices["discard"].add_argument("--yes", action="store_true", help="do not ask")


Action = Callable[[DeadLetters[Any], argparse.Namespace], int]


def _calling(action: Action, opened: Open) -> Callable[[Any, argparse.Namespace], int]:
    def call(settings: Any, options: argparse.Namespace) -> int:
        if "ids" in options:
            _require_choice(options)
        with opened(settings, options) as dead_letters:
            return action(dead_letters, options)

    return call


# -- commands ---------------------------------------------------------------------------------------------------------


def _list(dead_letters: DeadLetters[FactsT], options: argparse.Namespace) -> int:
    chosen = [one for one in dead_letters.all if _fits(one, options)]
    for one in chosen[: options.limit]:
        print(printable_json(one.page()) if options.json else one.line())
    if options.json:
        return 0
    if len(chosen) > options.limit:
        print(f"... and {len(chosen) - options.limit} more; --limit shows more of them")
    kinds = Counter(kind_of(one.reason) for one in chosen)
    print(f"{len(chosen)} dead letters")
    for kind, count in kinds.most_common(_SHOWN_KINDS):
        print(f"{count:>8}  {printable(kind)}")
    if len(kinds) > _SHOWN_KINDS:
        print(f"{'':>8}  and {len(kinds) - _SHOWN_KINDS} further reasons")
    if dead_letters.note:
        print(dead_letters.note)
    return 0


def _show(dead_letters: DeadLetters[FactsT], options: argparse.Namespace) -> int:
    one = next((one for one in dead_letters.all if one.id == options.id), None)
    content = dead_letters.content(one) if one is not None else None
    if one is None or content is None:
        _say_missing(options.id)
        return 1
    if options.json:
        print(printable_json(one.page() | content.page()))
        return 0
    facts = [(f"{name}:", str(value)) for name, value in one.page().items() if value != ""]
    record = [("record:", f"{_text(content.key)}  (its key)")] if content.key is not None else []
    headers = [("header:", f"{name} = {_text(value) or '(none)'}") for name, value in content.headers]
    rows = [*facts, *record, *headers]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(printable(f"{name:<{width}} {text}"))
    print(f"value:\n{pretty(content.value)}")
    return 0


def _retry(dead_letters: DeadLetters[FactsT], options: argparse.Namespace) -> int:
    chosen, missing = _chosen(dead_letters, options)
    if options.dry_run:
        for one in chosen:
            print(one.line())
        print(f"{len(chosen)} would be sent again")
        return missing
    refused = dead_letters.retry(chosen)
    for name, why in refused.items():
        print(f"{printable(name)} stays: {printable(why)}", file=sys.stderr)
    print(f"{len(chosen) - len(refused)} sent again")
    return 1 if refused else missing


def _discard(dead_letters: DeadLetters[FactsT], options: argparse.Namespace) -> int:
    chosen, missing = _chosen(dead_letters, options)
    if chosen and not options.yes:
        for one in chosen[:20]:
            print(one.line())
        if not _confirmed(len(chosen)):
            print("nothing was discarded", file=sys.stderr)
            return 1
    if dead_letters.is_kept_nowhere:
        for one in chosen:
            content = dead_letters.content(one)
            print(printable_json(one.page() | (content.page() if content is not None else {})))
        sys.stdout.flush()
    dead_letters.discard(chosen)
    print(f"{len(chosen)} discarded", file=sys.stderr if dead_letters.is_kept_nowhere else sys.stdout)
    return missing


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        print("nobody can be asked: the input is no terminal; give --yes to do it unasked", file=sys.stderr)
        return False
    return input(f"discard {count} dead letters for good? [y/N] ").strip().lower() in ("y", "yes")


# -- which ------------------------------------------------------------------------------------------------------------


def _require_choice(options: argparse.Namespace) -> None:
    filters = options.all or options.reason is not None or options.table is not None
    if bool(options.ids) == filters:
        raise SettingsError(["which dead letters? Give either their ids, or --all, --reason or --table"])


def _chosen(dead_letters: DeadLetters[FactsT], options: argparse.Namespace) -> tuple[list[FactsT], int]:
    """Returns those that are chosen, and 1 if an id has none."""
    if not options.ids:
        return [one for one in dead_letters.all if _fits(one, options)], 0
    chosen = [one for one in dead_letters.all if one.id in options.ids]
    missing = sorted(set(options.ids) - {one.id for one in chosen})
    for name in missing:
        _say_missing(name)
    return chosen, int(bool(missing))


def _say_missing(name: str) -> None:
    print(f"there is no dead letter with the id {name!r}", file=sys.stderr)


def _fits(one: Facts, options: argparse.Namespace) -> bool:
    reason, table = options.reason, options.table
    return (reason is None or reason.search(one.reason) is not None) and (
        table is None or table.fullmatch(one.table) is not None
    )


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"is no regular expression: {error}") from None


# -- texts ------------------------------------------------------------------------------------------------------------


def kind_of(reason: str) -> str:
    """Returns the reason without what differs between dead letters."""
    return shortened(_VARIES.sub("…", reason), _SHOWN_REASON)


def shortened(text: str, most: int) -> str:
    """Returns at most this many characters, with three dots where some are omitted."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def pretty(data: bytes | None) -> str:
    """Returns the value of a message: JSON over several lines, other texts unchanged, and other bytes escaped."""
    if data is None:
        return "(none)"
    try:
        # Not orjson, which makes floats of integers beyond 64 bits.
        whole = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        whole = data.decode("utf-8", "backslashreplace")
    return printable_lines(whole)


def _text(data: Any) -> str | None:
    if isinstance(data, bytes):
        return data.decode("utf-8", "backslashreplace")
    return None if data is None else str(data)


def subject(key: bytes | None, value: bytes | None, headers: Headers) -> tuple[str, str]:
    """Returns what a message is about, as far as known: database.table, and the primary key of its first row, else the
    record's key."""
    plain = (key or b"").decode("utf-8", "replace")[:200]
    try:
        message = read(value, key, headers)
    except MessageError:
        return _table_of(value), plain
    if isinstance(message, Rows):
        first = message.rows[0]
        values = [str(first.get(name)) for name in message.keys] or [plain]
        more = f" (+{len(message.rows) - 1} rows)" if len(message.rows) > 1 else ""
        return f"{message.database}.{message.table}", ",".join(values)[:200] + more
    return (f"{message.database}.{message.table}" if isinstance(message, Statement) else ""), plain


def _table_of(value: bytes | None) -> str:
    """Returns the table of a message that is not understood as a whole."""
    try:
        message = orjson.loads(value or b"")
        body = message.get("payload", message)
        names = body.get("source", {}) if "source" in body else body
        parts = [names.get("database", names.get("db")), names.get("table")]
    except (orjson.JSONDecodeError, AttributeError, TypeError):
        return ""
    return ".".join(parts) if all(isinstance(part, str) for part in parts) else ""
