"""`headrace-spark dead-letters list|show|retry|drop`: for messages that could not be applied."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace_common.printable import printable, printable_json, printable_lines
from headrace_spark.cli.common import Commands, add_command
from headrace_spark.dead_letters.records import OpenDeadLetter, own_headers
from headrace_spark.settings import load_settings

if TYPE_CHECKING:
    from headrace_spark.dead_letters.topic import DeadLetterTopic

_SHOWN_REASON = 160
_SHOWN_KINDS = 20
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\d+")
"""What differs between two reasons of the same kind."""


def add(commands: Commands) -> None:
    group = commands.add_parser("dead-letters", help="the messages that could not be applied")
    actions = group.add_subparsers(dest="action", required=True)
    listed = add_command(actions, "list", "show the letters that are open; nothing changes")
    shown = add_command(actions, "show", "show one letter with all that is in it; nothing changes")
    retry = add_command(actions, "retry", "publish messages to their topics again, unchanged, and note it")
    drop = add_command(actions, "drop", "note that letters are to be forgotten, after a question")
    listed.add_argument("--limit", type=_positive, default=1000, metavar="N", help="most lines; default 1000")
    listed.add_argument("--json", action="store_true", help="one JSON object a line")
    shown.add_argument("id", help="as list shows it")
    for command in (retry, drop):
        command.add_argument("ids", nargs="*", metavar="ID", help="as list shows it")
        command.add_argument("--all", action="store_true", help="all that are open")
    for command in (listed, retry, drop):
        command.add_argument("--reason", type=_regex, metavar="REGEX", help="those whose reason has a match of it")
        command.add_argument("--table", type=_regex, metavar="REGEX", help="those whose database.table it matches")
    retry.add_argument("--dry-run", action="store_true", help="show which; nothing changes")
    drop.add_argument("--yes", action="store_true", help="do not ask")
    for action, run in ((listed, _list), (shown, _show), (retry, _retry), (drop, _drop)):
        action.set_defaults(run=run)


# -- commands ---------------------------------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    with _opened(options) as box:
        chosen = [letter for letter in box.letters if _fits(letter, options)]
        for letter in chosen[: options.limit]:
            print(printable_json(facts(letter)) if options.json else line(letter))
        if options.json:
            return 0
        if len(chosen) > options.limit:
            print(f"... and {len(chosen) - options.limit} more; --limit shows more of them")
        _print_kinds(chosen)
        if box.foreign:
            print(f"{box.foreign} further records are no dead letters of headrace; nothing before them is deleted")
    return 0


def _show(options: argparse.Namespace) -> int:
    with _opened(options) as box:
        letter = box.find(options.id)
        record = box.read(letter) if letter is not None else None
        if letter is None or record is None:
            print(f"there is no open dead letter with the id {options.id!r}", file=sys.stderr)
            return 1
        for name, value in facts(letter).items():
            if value != "":
                print(f"{name + ':':<10} {printable(str(value))}")
        print(f"{'record:':<10} {_text(record.key)}  (its key)")
        for name, header in own_headers(record.headers):
            print(f"{'header:':<10} {printable(name)} = {_text(header)}")
        print(f"{'value:':<10} {letter.size} bytes\n{pretty(record.value)}")
    return 0


def _retry(options: argparse.Namespace) -> int:
    with _opened(options) as box:
        chosen, missing = _chosen(box, options)
        if options.dry_run:
            for letter in chosen:
                print(line(letter))
            print(f"{len(chosen)} would be published to their topics again")
            return missing
        outcome = box.retry(chosen)
        for name, why in outcome.refused.items():
            print(f"{printable(name)} stays: {printable(why)}", file=sys.stderr)
        print(f"{len(outcome.done)} published to their topics again")
        return 1 if outcome.refused else missing


def _drop(options: argparse.Namespace) -> int:
    with _opened(options) as box:
        chosen, missing = _chosen(box, options)
        if chosen and not options.yes:
            for letter in chosen[:20]:
                print(line(letter))
            if not _confirmed(len(chosen)):
                print("nothing was dropped", file=sys.stderr)
                return 1
        print(f"{len(box.drop(chosen).done)} dropped")
        return missing


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        print("this is no terminal to ask at: give --yes", file=sys.stderr)
        return False
    return input(f"drop {count} dead letters for good? [y/N] ").strip().lower() in ("y", "yes")


# -- which ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(options: argparse.Namespace) -> Iterator[DeadLetterTopic]:
    settings = load_settings(options.config)
    if options.action in ("retry", "drop"):
        _require_choice(options)
    # Imported late: a wrong config is told at once, not after Spark's Python half has been loaded.
    from headrace_spark.dead_letters.topic import DeadLetterTopic
    from headrace_spark.session.jvm import open_jvm
    from headrace_spark.source.kafka import check_reachable
    from headrace_spark.source.kafka_client import KafkaClient

    check_reachable(settings.kafka)
    with open_jvm(settings.spark) as jvm, KafkaClient(jvm, settings.kafka) as client:
        yield DeadLetterTopic(client, settings.kafka.dead_letter_topic, lambda text: print(text, file=sys.stderr))


def _require_choice(options: argparse.Namespace) -> None:
    filters = [options.all, options.reason is not None, options.table is not None]
    if bool(options.ids) == any(filters):
        print(
            f"dead-letters {options.action}: say which: either ids, or --all, --reason or --table",
            file=sys.stderr,
        )
        raise SystemExit(2)


def _chosen(box: DeadLetterTopic, options: argparse.Namespace) -> tuple[list[OpenDeadLetter], int]:
    """The letters, and 1 when an id has none."""
    if not options.ids:
        return [letter for letter in box.letters if _fits(letter, options)], 0
    found = {name: box.find(name) for name in options.ids}
    for name, letter in found.items():
        if letter is None:
            print(f"there is no open dead letter with the id {name!r}", file=sys.stderr)
    chosen = [letter for letter in found.values() if letter is not None]
    return chosen, int(len(chosen) < len(found))


def _fits(letter: OpenDeadLetter, options: argparse.Namespace) -> bool:
    reason, table = options.reason, options.table
    return (reason is None or reason.search(letter.reason) is not None) and (
        table is None or table.fullmatch(letter.table) is not None
    )


# -- for people and programs ------------------------------------------------------------------------------------------


def facts(letter: OpenDeadLetter) -> dict[str, Any]:
    """A letter under the names that the command line shows."""
    return {
        "id": letter.id,
        "time": letter.time,
        "table": letter.table,
        "key": letter.key,
        "reason": letter.reason,
        "topic": letter.origin.topic,
        "partition": letter.origin.partition,
        "offset": letter.origin.offset,
        "batch": letter.batch,
        "bytes": letter.size,
    }


def line(letter: OpenDeadLetter) -> str:
    """A letter on one line."""
    parts = (letter.id, letter.time, letter.table or "-", letter.key or "-", shortened(letter.reason, _SHOWN_REASON))
    return "  ".join(printable(part) for part in parts)


def kind_of(reason: str) -> str:
    """The reason without what differs from one letter to the next."""
    return shortened(_VARIES.sub("…", reason), _SHOWN_REASON)


def _print_kinds(letters: list[OpenDeadLetter]) -> None:
    kinds = Counter(kind_of(letter.reason) for letter in letters)
    print(f"{len(letters)} open dead letters")
    for kind, count in kinds.most_common(_SHOWN_KINDS):
        print(f"{count:>8}  {printable(kind)}")
    if len(kinds) > _SHOWN_KINDS:
        print(f"{'':>8}  and {len(kinds) - _SHOWN_KINDS} further reasons")


def pretty(data: bytes | None) -> str:
    """The value of a message: JSON over several lines, other texts as they are, and other bytes escaped."""
    if data is None:
        return "(none)"
    try:
        # Not orjson, which makes floats of integers beyond 64 bits.
        whole = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        whole = data.decode("utf-8", "backslashreplace")
    return printable_lines(whole)


def shortened(text: str, most: int) -> str:
    """At most so many characters, with three dots where some are left out."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _text(data: bytes | None) -> str:
    return "(none)" if data is None else printable(data.decode("utf-8", "backslashreplace"))


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("should be a number from 1 on")
    return int(text)


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"is no regular expression: {error}") from None
