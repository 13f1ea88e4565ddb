"""Follows the statements of the stream: DDL updates the schema history and is published, DML texts go with their
rows."""

from __future__ import annotations

import struct
from collections.abc import Callable

import structlog

from headrace import runtime
from headrace.model import NO_ORIGIN, DdlKind, Origin, SchemaChange, TableSchema
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.query_event import QueryEvent, parse_compressed_query, parse_query
from headrace.mysql.events.splitter import SchemaNeeded
from headrace.mysql.events.statements import Statement, classify
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.schema.ddl.actions import StatementInfo
from headrace.mysql.schema.ddl.classify import LONG
from headrace.mysql.schema.history import DdlEffect, SchemaHistory
from headrace.mysql.sql.tokens import first_tokens
from headrace.ports.source import Receiver

log = structlog.get_logger(__name__)

_TOO_LONG = 15 << 20
"""Bytes above which only the beginning of a statement is read and published."""
_EXECUTED = struct.Struct("<I10xI").unpack_from
"""The server's id, which is 14 bytes before the body, and the session's, with which the body begins."""
Captures = Callable[[str, str], bool]
"""Returns whether the rows of a table (schema, name) are captured."""


class StatementFollower:
    """Handlers of statements and of the texts that made rows.

    Without a `history` the effect of statements is unknown. The `receiver` gets each statement about something captured
    whose category (`ddl`, `dcl`) is selected, and a sentence if rows of captured tables have changed without events.
    `changed` is called when the schemas of captured tables have changed. `largest` is the maximum size in bytes of a
    compressed statement. With `apart` the event of a long statement is not handled before read_apart() has read it,
    because that takes up to a second: see `waiting`."""

    def __init__(
        self,
        cursor: EventCursor,
        transactions: Transactions,
        history: SchemaHistory | None,
        captures: Captures,
        *,
        receiver: Receiver,
        reported: frozenset[str],
        changed: Callable[[], None],
        largest: int,
        apart: bool = False,
    ) -> None:
        self._cursor, self._transactions, self._history = cursor, transactions, history
        self._captures, self._reported, self._changed = captures, reported, changed
        self._largest = largest
        self._report, self._unlogged, self._altered = receiver.statement, receiver.unlogged, receiver.altered
        self._version = -1
        """The version of the history at the last check of table schemas."""
        self.text: str | None = None
        """The text of the following rows, if such texts are wanted and it was not published yet."""
        self._text_of, self._text_origin = 0, NO_ORIGIN
        """The number of its transaction, and its origin."""
        self._apart = apart and history is not None
        self.waiting: QueryEvent | None = None
        """A long statement: read_apart() must be called before its event is given again."""
        self._read: tuple[bytes, Statement, StatementInfo] | None = None
        """The text of that statement, and what it is."""

    async def read_apart(self) -> None:
        """Reads the waiting statement in a thread, so that other tasks run. If cancelled, it may be called again."""
        query, history, dialect = self.waiting, self._history, self._cursor.dialect
        if query is not None and history is not None:
            self._read = await runtime.in_thread(
                lambda: (query.text, classify(query.text, dialect), history.read(query))
            )
        self.waiting = None

    # -- statements -----------------------------------------------------------------------------------------------

    def on_query(self, data: bytes, at: int, stop: int) -> None:
        if data[stop - 6 : stop] != b"\0BEGIN":
            self._run(parse_query(data, at, stop), at, stop)
        elif self._transactions.in_group and not self._transactions.passing:
            self._transactions.enter()
        else:
            self._transactions.on_begin()

    def on_query_with_origin(self, data: bytes, at: int, stop: int) -> None:
        """Does the same, and records who executed it: the event header has the server's id, the statement (also BEGIN)
        its session's. MariaDB begins most transactions without a statement: then the session is unknown."""
        transactions = self._transactions
        transactions.server_id, transactions.thread_id = _EXECUTED(data, at - 14)
        if (
            transactions.in_group and not transactions.passing and data[stop - 6 : stop] == b"\0BEGIN"
        ):  # true for nearly all transactions
            transactions.enter()
        else:
            self.on_query(data, at, stop)

    def on_compressed_query(self, data: bytes, at: int, stop: int) -> None:
        """Handles MariaDB's QUERY_COMPRESSED."""
        self._run(parse_compressed_query(data, at, stop, self._largest), at, stop)

    def _run(self, query: QueryEvent, at: int, stop: int) -> None:
        transactions, (kind, info) = self._transactions, self._kind_of(query)
        if transactions.on_statement(kind, query.text):
            return
        inside = transactions.inside or kind is Statement.ATOMIC_DDL
        if inside and kind is not Statement.DML:  # counted, so that a restart within the group continues after it
            transactions.events_done += 1
            done = transactions.events_done <= transactions.skip_events
        else:
            done = transactions.events_done < transactions.skip_events
        if not done or transactions.passing:
            if self._history is not None:
                self._apply(self._history, query, info, self._cursor.end_of(at, stop))
            elif kind is Statement.DML and not transactions.passing:
                self._refuse_dml(query, None)
        if kind is Statement.ATOMIC_DDL:
            transactions.inside = True  # CREATE TABLE ... SELECT: its rows follow in the same group
        elif not transactions.inside:
            transactions.commit()

    def _kind_of(self, query: QueryEvent) -> tuple[Statement, StatementInfo | None]:
        """Returns what read_apart() has found out about the statement, or its kind alone. Raises SchemaNeeded for a
        long one that was not read yet."""
        read, self._read = self._read, None
        if read is not None and read[0] == query.text:
            return read[1:]
        if self._apart and LONG < len(query.text) < _TOO_LONG:
            self.waiting = query
            raise SchemaNeeded
        return classify(query.text, self._cursor.dialect), None

    def _apply(self, history: SchemaHistory, query: QueryEvent, info: StatementInfo | None, end: int) -> None:
        # A number is used whether it is published or not: entries of the history must not be later than the position.
        of = self._transactions
        pos = of.given if of.passing else of.next_pos(1)  # a restart skips it again
        effect = history.apply(query, file=self._cursor.file, end=end, pos=pos, info=info)
        if history.version != self._version:
            self._version = history.version
            self._changed()
        if query.alter_phase in ("start", "rollback") or self._transactions.passing:
            return  # an ALTER is published once, when it is done
        if self._altered is not None and effect.category == "ddl" and not effect.temporary:
            self._altered(_concerned(effect), effect.tables)
        if effect.unlogged and self._unlogged is not None and self._concerns(effect):
            names = " and ".join(".".join(name) for name in effect.named or ())
            text = "its text may hold a password" if effect.secret else query.sql[:100]
            self._unlogged(f"rows of {names} changed at {self._cursor.position} without events: {text}")
        if effect.category == "dml":
            self._refuse_dml(query, effect.named)
        elif effect.category in self._reported and not effect.temporary and self._concerns(effect):
            if not effect.secret:
                self._give(effect, query.sql, pos, self._transactions.origin(), query.schema)
            elif effect.category == "ddl":
                self._report_withheld(effect.schema, effect.table)

    def _report_withheld(self, schema: str, table: str) -> None:
        log.warning(
            "a statement is not published, because its text may hold a password",
            table=f"{schema}.{table}",
            position=self._cursor.position,
        )

    def _give(self, effect: DdlEffect, sql: str, pos: int, origin: Origin, session_schema: str = "") -> None:
        if self._report is not None:
            of = self._transactions
            self._report(
                SchemaChange(
                    effect.kind,
                    effect.category,
                    effect.schema,
                    effect.table,
                    sql,
                    effect.tables,
                    pos,
                    of.commit_time_us,
                    of.gtid,
                    origin=origin,
                    alters=effect.alters,
                    view=effect.view,
                    session_schema=session_schema,
                )
            )

    def _concerns(self, effect: DdlEffect) -> bool:
        """Returns whether a statement is about something captured; one that names no table is judged by its schema."""
        if effect.category == "dcl":
            return True
        if effect.named:
            return any(self._captures(schema, table) for schema, table in effect.named)
        return self._captures(effect.schema, effect.table)

    def _refuse_dml(self, query: QueryEvent, named: tuple[tuple[str, str], ...] | None) -> None:
        if named is not None and not any(self._captures(schema, table) for schema, table in named):
            return
        remedy = f"{self._cursor.dialect.setter} binlog_format = 'ROW'; and let old sessions reconnect"
        if self._cursor.dialect.mariadb:
            remedy += "; a table whose ROW START is a BIGINT is always written so: leave it out with [filter] exclude"
        raise self._cursor.not_understood(
            f"a statement in schema '{query.schema}' was written as text, its rows are not in the binlog", remedy
        )

    # -- texts ----------------------------------------------------------------------------------------------------

    def on_text(self, data: bytes, at: int, stop: int) -> None:
        """Handles ROWS_QUERY; a byte before the text is a length that may be too small for it."""
        if self._transactions.holding:
            self._transactions.hold(ev.ROWS_QUERY, data[at:stop])
        else:
            self._note(data[at + 1 : stop])

    def on_annotation(self, data: bytes, at: int, stop: int) -> None:
        """Handles MariaDB's ANNOTATE_ROWS."""
        if self._transactions.holding:
            self._transactions.hold(ev.ANNOTATE_ROWS, data[at:stop])
        else:
            self._note(data[at:stop])

    def _note(self, text: bytes) -> None:
        of = self._transactions
        self.text, self._text_of, self._text_origin = text.decode("utf-8", "backslashreplace"), of.count, of.origin()

    def give_text(self, schema: TableSchema) -> None:
        """Publishes `text` before its rows; they are of this table."""
        text, self.text = self.text, None
        if text is not None and self._text_of == self._transactions.count:
            pos = self._transactions.next_pos(1)
            if self._makes_a_secret_table(text):
                self._report_withheld(schema.schema, schema.table)
            else:
                self._give(DdlEffect(DdlKind.QUERY, "dml", schema.schema, schema.table), text, pos, self._text_origin)

    def _makes_a_secret_table(self, text: str) -> bool:
        """Returns whether it is a CREATE TABLE ... SELECT that may contain the password of a table elsewhere."""
        first = [token.upper for token in first_tokens(text, self._cursor.dialect, 1)]
        if self._history is None or first not in (["CREATE"], ["SET"]):  # MariaDB's SET STATEMENT ... FOR CREATE
            return False
        return self._history.read(QueryEvent("", text.encode())).secret


def _concerned(effect: DdlEffect) -> frozenset[tuple[str, str]] | None:
    """Returns the tables that a statement may have changed, by their names before and after; None if unknown."""
    if effect.named is None or effect.problem:
        return None
    names = {*effect.named}
    for change in effect.tables:
        names.add((change.schema, change.table))
        if change.renamed_from is not None:
            names.add(change.renamed_from)
    return frozenset(names)
