"""Turns a batch of messages into documents: runs in a separate thread, and returns the result for each message."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from headrace_consume.message import Message
from headrace_consume.settings import Settings
from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.index_setup import IndexRefused
from headrace_documents.errors import BulkError, MessageError
from headrace_documents.formats.changes import Rows, Statement
from headrace_documents.indexes.plans import Indexes
from headrace_documents.indexes.projection import UnfitTable
from headrace_documents.joins.tree import JoinTrees
from headrace_documents.messages import actions, read
from headrace_documents.newest import Newest
from headrace_documents.truncate import Truncation, TruncationPlan, Truncator, not_truncated

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Outcome:
    """The result of a batch. A message is in exactly one of the two."""

    done: list[Message] = field(default_factory=list)
    failed: list[Message] = field(default_factory=list)
    """These can't be applied; `reason` says why."""


class Applier:
    """Applies batches, one at a time. `rows`, `ignored` and the writer's tally count what was done."""

    def __init__(self, settings: Settings, writer: BulkWriter) -> None:
        self._rules = settings.elasticsearch.rules()
        self.writer = writer
        self._truncation_plan = TruncationPlan(settings.elasticsearch, Indexes(()), JoinTrees(()), takes_others=True)
        self._truncator = Truncator(settings.elasticsearch, {}, writer)
        self.rows = self.ignored = 0
        # A session that lost its connection may leave its last batch running in its thread.
        self._one_at_a_time = threading.Lock()

    def apply(self, messages: Sequence[Message]) -> Outcome:
        """Writes the messages. Raises BulkError if Elasticsearch accepts nothing now: then no message is the cause, and
        the same batch may be given again, because versions make a repeated write harmless."""
        with self._one_at_a_time:
            try:
                return self._apply(messages)
            except IndexRefused as error:
                raise BulkError(str(error)) from None

    def _apply(self, messages: Sequence[Message]) -> Outcome:
        newest: Newest[int] = Newest()
        reasons: dict[int, str] = {}
        rows: dict[int, int] = {}
        truncations: dict[int, list[Truncation]] = {}
        for number, message in enumerate(messages):
            try:
                said = read(message.body, headers=message.headers)
                wanted: list[Action] = []
                if isinstance(said, Rows):
                    wanted = actions(said, self._rules)
                    wanted = not_truncated(self.writer, wanted, f"{said.database}.{said.table}")
                elif isinstance(said, Statement):
                    truncations[number] = self._truncations(said)
            except (MessageError, UnfitTable) as error:
                reasons[number] = str(error)
                continue
            rows[number] = len(said.rows) if isinstance(said, Rows) else 0
            for action in wanted:
                newest.add(action, number)
        for action, number, reason in newest.write(self.writer):
            reasons.setdefault(number, f"Elasticsearch refuses row {action.row}: {reason}")
        for some in truncations.values():
            for truncation in some:
                self._truncator.documents(truncation)
        outcome = Outcome()
        for number, message in enumerate(messages):
            if number in reasons:
                message.reason = reasons[number]
                outcome.failed.append(message)
            else:
                outcome.done.append(message)
                self.rows += rows[number]
        return outcome

    def _truncations(self, statement: Statement) -> list[Truncation]:
        found = self._truncation_plan.of(statement)
        if found is None:
            self.ignored += 1
            log.debug("a statement changes no document", kind=statement.kind, table=statement.table)
        return found or []
