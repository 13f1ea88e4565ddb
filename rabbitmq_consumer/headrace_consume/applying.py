"""From a batch of messages to documents: runs in a thread of its own, and says of each message what became of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from headrace_consume.letters import Message
from headrace_consume.settings import Settings
from headrace_documents.elastic import BulkWriter
from headrace_documents.errors import MessageError
from headrace_documents.messages import parse
from headrace_documents.newest import Newest

log = structlog.get_logger("headrace_consume.applying")


@dataclass(slots=True)
class Outcome:
    """What became of a batch. A message is in exactly one of the two."""

    done: list[Message] = field(default_factory=list)
    failed: list[Message] = field(default_factory=list)
    """They can't be applied; `reason` says why."""


class Applier:
    """Applies batches, one at a time. `rows`, `ignored` and the writer's tally count what was done."""

    def __init__(self, settings: Settings, writer: BulkWriter) -> None:
        self._rules = settings.elasticsearch.rules()
        self.writer = writer
        self.rows = self.ignored = 0
        # A session that lost its connection leaves its last batch behind in its thread.
        self._one_at_a_time = threading.Lock()

    def apply(self, messages: Sequence[Message]) -> Outcome:
        """Writes what the messages ask for. Raises BulkError when Elasticsearch takes nothing now: then no message
        is to blame, and the same batch may be given again, because versions make a repeated write harmless."""
        with self._one_at_a_time:
            return self._apply(messages)

    def _apply(self, messages: Sequence[Message]) -> Outcome:
        newest: Newest[int] = Newest()
        reasons: dict[int, str] = {}
        rows: dict[int, int] = {}
        statements: dict[int, str] = {}
        for number, message in enumerate(messages):
            try:
                parsed = parse(message.body, self._rules, headers=message.headers)
            except MessageError as error:
                reasons[number] = str(error)
                continue
            rows[number] = parsed.rows
            if parsed.ignored:
                statements[number] = parsed.ignored
            for action in parsed.actions:
                newest.add(action, number)
        for action, number, reason in newest.write(self.writer):
            reasons.setdefault(number, f"Elasticsearch refuses row {action.row}: {reason}")
        for number, statement in statements.items():
            self.ignored += 1
            log.warning("DDL is not applied to Elasticsearch", ddl=statement, id=messages[number].id)
        outcome = Outcome()
        for number, message in enumerate(messages):
            if number in reasons:
                message.reason = reasons[number]
                outcome.failed.append(message)
            else:
                outcome.done.append(message)
                self.rows += rows[number]
        return outcome
