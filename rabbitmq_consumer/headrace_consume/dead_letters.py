"""`headrace-consume dead-letters`: takes dead letters from their queues for the commands that both consumers have."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace_common.arguments import positive
from headrace_consume import message as headers
from headrace_consume.broker import Broker, BrokerError
from headrace_consume.dead_letter_queues import DeadLetterQueues
from headrace_consume.message import Message, number, own_headers, text
from headrace_consume.service import quiet_clients
from headrace_consume.settings import Settings
from headrace_documents.cli import CommandLine
from headrace_documents.dead_letters import Content, DeadLetters, Facts, add_dead_letters, subject

STATES = ("PENDING", "NEEDS_OPERATOR")


def add(line: CommandLine) -> None:
    add_dead_letters(line, _opened, _add_options)


def _add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state",
        choices=STATES,
        type=str.upper,
        help="only those in this state; PENDING: the scan sends them again",
    )
    command.add_argument(
        "--most", type=positive, default=1000, metavar="N", help="messages read of each queue (default: %(default)s)"
    )


@dataclass(slots=True)
class TakenDeadLetter(Facts):
    """A dead letter that was taken from its queue, and is not acknowledged."""

    state: str
    message: Message

    def more(self) -> dict[str, Any]:
        of = self.message.headers
        return {
            "state": self.state,
            "attempts": number(of, headers.ATTEMPTS),
            "resends": number(of, headers.RESENDS),
            "last": text(of.get(headers.LAST)),
            "exchange": text(of.get(headers.EXCHANGE)),
            "routing_key": text(of.get(headers.ROUTING_KEY)),
        }


class TakenDeadLetters(DeadLetters[TakenDeadLetter]):
    """The taken dead letters; unchanged ones go back to their queues when the connection ends."""

    is_kept_nowhere = True

    def __init__(
        self, runner: asyncio.Runner, broker: Broker, queues: DeadLetterQueues, taken: list[TakenDeadLetter]
    ) -> None:
        self._runner, self._broker, self._queues, self._taken = runner, broker, queues, taken

    @property
    def all(self) -> Sequence[TakenDeadLetter]:
        return self._taken

    def content(self, one: TakenDeadLetter) -> Content:
        return Content(None, list(own_headers(one.message.headers).items()), one.message.body)

    def retry(self, chosen: Sequence[TakenDeadLetter]) -> Mapping[str, str]:
        self._runner.run(self._end(chosen, again=True))
        return {}

    def discard(self, chosen: Sequence[TakenDeadLetter]) -> None:
        self._runner.run(self._end(chosen, again=False))

    async def _end(self, chosen: Sequence[TakenDeadLetter], *, again: bool) -> None:
        for one in chosen:
            if again:
                await self._queues.resend(self._broker, one.message, 0)
            await self._broker.acknowledge(0, [one.message.tag])


@contextmanager
def _opened(settings: Settings, options: argparse.Namespace) -> Iterator[TakenDeadLetters]:
    with asyncio.Runner() as runner:
        broker = runner.run(_connected(settings))
        try:
            taken = runner.run(_take(settings, broker, options))
            yield TakenDeadLetters(runner, broker, DeadLetterQueues(settings), taken)
        finally:
            runner.run(broker.close())


async def _connected(settings: Settings) -> Broker:
    quiet_clients()
    return await Broker.connect(settings.rabbitmq, "headrace-consume dead-letters")


async def _take(settings: Settings, broker: Broker, options: argparse.Namespace) -> list[TakenDeadLetter]:
    taken: list[TakenDeadLetter] = []
    for state, queue in zip(STATES, (settings.dead_queue, settings.operator_queue), strict=True):
        if options.state not in (state, None):
            continue
        count = await broker.has_queue(queue)
        if count is None:
            raise BrokerError(f"RabbitMQ {broker.address} has no queue {queue}: the consumer makes it at its start")
        for _ in range(min(count, options.most)):
            message = await broker.get(queue)
            if message is None:
                break
            taken.append(facts_of(message, state))
        if count > options.most:
            print(f"queue {queue} has {count} messages; --most {options.most} of them", file=sys.stderr)
    return taken


def facts_of(message: Message, state: str) -> TakenDeadLetter:
    """Returns the facts of a message in a queue of dead letters."""
    of = message.headers
    table, key = subject(None, message.body, of)
    first, reason = text(of.get(headers.FIRST)), text(of.get(headers.REASON))
    return TakenDeadLetter(message.id, first, table, key, reason, len(message.body), state, message)
