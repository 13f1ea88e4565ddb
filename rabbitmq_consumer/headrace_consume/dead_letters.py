"""`headrace-consume dead-letters list|resend|discard`: for messages that could not be applied."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headrace_consume.broker import Broker, BrokerError
from headrace_consume.dead_letter_queues import DeadLetterQueues
from headrace_consume.message import Message, describe
from headrace_consume.service import quiet_clients
from headrace_consume.settings import Settings

OpenDeadLetter = tuple[Message, dict[str, Any]]


def add_commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Adds the sub-commands; returns their parsers."""
    commands = parser.add_subparsers(dest="action", required=True)
    show = commands.add_parser("list", help="show them; nothing changes")
    resend = commands.add_parser("resend", help="send them to the queue again, as if for the first time")
    discard = commands.add_parser("discard", help="take them away for good, after a question; they are printed")
    for command in (show, resend, discard):
        command.add_argument("--json", action="store_true", help="one JSON object a line, with the whole message")
        command.add_argument("--limit", type=_positive, default=1000, help="messages read of each queue; default 1000")
        command.add_argument(
            "--where",
            choices=["needs_operator", "waiting", "all"],
            default="all",
            help="needs_operator: only those that need an operator",
        )
    for command in (resend, discard):
        chosen = command.add_mutually_exclusive_group(required=True)
        chosen.add_argument("--id", action="append", default=[], help="the message's id, as list shows it; repeatable")
        chosen.add_argument("--all", action="store_true", help="all that list shows")
    discard.add_argument("--yes", action="store_true", help="do not ask")
    return [show, resend, discard]


async def command(settings: Settings, options: argparse.Namespace) -> int:
    """Runs one of them. Exit codes: 0 done, 1 none of that id, or not confirmed. Raises BrokerError."""
    quiet_clients()
    async with _letters(settings, options) as (broker, letters):
        if options.action == "list":
            _show([told for _, told in letters], options.json)
            return 0
        chosen = [letter for letter in letters if options.all or letter[1]["id"] in options.id]
        missing = set(options.id) - {told["id"] for _, told in chosen}
        for name in sorted(missing):
            print(f"there is no dead letter with the id {name!r}", file=sys.stderr)
        if options.action == "discard" and chosen and not options.yes and not _confirmed(len(chosen)):
            print("nothing was discarded", file=sys.stderr)
            return 1
        # What is discarded is printed whole, and before it is gone.
        _show([told for _, told in chosen], options.json or options.action == "discard")
        sys.stdout.flush()
        await _act(settings, options.action, broker, [message for message, _ in chosen])
        print(f"{len(chosen)} {'sent again' if options.action == 'resend' else 'discarded'}", file=sys.stderr)
        return 1 if missing else 0


@asynccontextmanager
async def _letters(
    settings: Settings, options: argparse.Namespace
) -> AsyncIterator[tuple[Broker, list[OpenDeadLetter]]]:
    """The dead letters, taken and not acknowledged: those that nothing happens to go back when the connection ends."""
    broker = await Broker.connect(settings.rabbitmq, "headrace-consume dead-letters")
    try:
        letters: list[OpenDeadLetter] = []
        for where, queue in (("waiting", settings.dead_queue), ("needs_operator", settings.operator_queue)):
            if options.where not in (where, "all"):
                continue
            count = await broker.has_queue(queue)
            if count is None:
                raise BrokerError(f"RabbitMQ {broker.address} has no queue {queue}: the consumer makes it at its start")
            for _ in range(min(count, options.limit)):
                message = await broker.get(queue)
                if message is None:
                    break
                letters.append((message, describe(message.headers, message.message_id, where, message.body)))
            if count > options.limit:
                print(f"queue {queue} has {count} messages; --limit {options.limit} of them", file=sys.stderr)
        yield broker, letters
    finally:
        await broker.close()


async def _act(settings: Settings, action: str, broker: Broker, chosen: Sequence[Message]) -> None:
    dead_letters = DeadLetterQueues(settings)
    for message in chosen:
        if action == "resend":
            await dead_letters.resend(broker, message, 0)
        await broker.acknowledge(0, [message.tag])


def _show(letters: Sequence[dict[str, Any]], as_json: bool) -> None:
    for letter in letters:
        if as_json:
            print(json.dumps(letter, ensure_ascii=False))
            continue
        print(
            f"{letter['id'] or '(no id)'}  {letter['where']}, {letter['attempts']} attempts, "
            f"{letter['resends']} resends, first {letter['first']}, "
            f"from {letter['exchange'] or 'the default exchange'} by {letter['routing_key']}\n    {letter['reason']}"
        )


def _confirmed(count: int) -> bool:
    print(f"Discard {count} messages for good? They are printed. Type yes: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() == "yes"


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError("should be a whole number from 1 on")
    return int(text)
