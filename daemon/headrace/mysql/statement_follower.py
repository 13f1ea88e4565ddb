"""Follows the statements of the stream: DDL into the schema history and on to consumers, DML as text to a stop."""

from __future__ import annotations

from collections.abc import Callable

from headrace.model import DdlKind, Position, SchemaChange, TableSchema, TransactionMark
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.query_event import QueryEvent, parse_compressed_query
from headrace.mysql.events.statements import Statement
from headrace.mysql.events.transactions import TransactionFollower
from headrace.mysql.schema.history import DdlEffect, SchemaHistory


class StatementFollower(TransactionFollower):
    """What QUERY events do to tables, and the marks of transactions. See Decoder for the arguments."""

    def __init__(
        self,
        start: Position,
        *,
        captures: Callable[[str, str], bool],
        checksums: bool,
        skip_before: int,
        emit_schema: Callable[[SchemaChange], None] | None,
        emit_mark: Callable[[TransactionMark], None] | None,
        history: SchemaHistory | None,
        options: DecoderOptions,
    ) -> None:
        super().__init__(start, checksums=checksums, skip_before=skip_before, options=options)
        self._options, self._captures = options, captures
        self._emit_schema, self._emit_mark = emit_schema, emit_mark
        self._whole_transactions = emit_mark is not None
        self.history = history
        self._history_version = -1
        self._handlers[ev.QUERY_COMPRESSED] = self._on_query_compressed
        if options.dml_queries:
            self._handlers[ev.ROWS_QUERY] = self._on_rows_query
            self._handlers[ev.ANNOTATE_ROWS] = self._on_annotate_rows

    def _on_query_compressed(self, data: bytes, at: int, stop: int) -> None:
        self._run_query(parse_compressed_query(data, at, stop), self._end_of(at, stop))

    # -- statements -----------------------------------------------------------------------------------------------

    def _on_statement(self, kind: Statement, query: QueryEvent, end: int) -> None:
        inside = self._in_transaction or kind is Statement.ATOMIC_DDL
        if inside and kind is not Statement.DML:  # counted, so that a restart within the group goes on behind it
            self.events_done += 1
            done = self.events_done <= self._skip_events
        else:
            done = self.events_done < self._skip_events
        # Before a place that is confirmed, the history has it already; before a time to start at, it only is not told.
        done = done or self._skip_to is not None
        if self.history is not None and not done:
            self._apply(self.history, query, end)
        elif kind is Statement.DML and not done and not self._skipping():
            self._refuse_dml(query, None)
        if kind is Statement.ATOMIC_DDL:
            self._in_transaction = True  # CREATE TABLE ... SELECT: its rows follow in the same group
        elif not self._in_transaction:
            self._on_commit()

    def _apply(self, history: SchemaHistory, query: QueryEvent, end: int) -> None:
        # Given out whether it is told or not: what the history stores must not be of a later time than the position.
        pos = self._next_pos(1)
        effect = history.apply(query, file=self.file, end=end, pos=pos)
        if history.version != self._history_version:
            self._history_version = history.version
            self._on_layouts_changed()
        if self._skipping() or query.alter_phase in ("start", "rollback"):  # an ALTER is told once, when it is done
            return
        if effect.category == "dml":
            self._refuse_dml(query, effect.named)
            return
        wanted = {"ddl": True, "dcl": self._options.dcl}.get(effect.category, False)
        if not wanted or effect.temporary or not self._concerns(effect):
            return
        if self._emit_schema is not None and (effect.category != "ddl" or self._options.ddl):
            self._emit_schema(
                SchemaChange(
                    effect.kind,
                    effect.category == "ddl",
                    effect.schema,
                    effect.table,
                    query.sql,
                    effect.tables,
                    pos,
                    self.commit_time_us,
                    self.gtid,
                )
            )

    def _concerns(self, effect: DdlEffect) -> bool:
        """Whether a statement is about something that is captured; what names no table is told by its schema."""
        if effect.category == "dcl":
            return True
        if effect.named:
            return any(self._captures(schema, table) for schema, table in effect.named)
        return self._captures(effect.schema, effect.table)

    def _refuse_dml(self, query: QueryEvent, named: tuple[tuple[str, str], ...] | None) -> None:
        if named is not None and not any(self._captures(schema, table) for schema, table in named):
            return
        raise self._not_understood(
            f"a statement in schema '{query.schema}' was written as text, its rows are not in the binlog",
            "SET PERSIST binlog_format = 'ROW'; and let old sessions reconnect",
        )

    def _on_rows_query(self, data: bytes, at: int, stop: int) -> None:
        """The text that made the rows that follow; a byte before it says a length that may be too small for it."""
        self._statement = data[at + 1 : stop].decode("utf-8", "backslashreplace")

    def _on_annotate_rows(self, data: bytes, at: int, stop: int) -> None:
        """The same by MariaDB."""
        self._statement = data[at:stop].decode("utf-8", "backslashreplace")

    def _give_statement(self, schema: TableSchema) -> None:
        text, self._statement = self._statement, None
        assert text is not None
        pos = self._next_pos(1)
        if self._emit_schema is not None:
            self._emit_schema(
                SchemaChange(
                    DdlKind.QUERY, False, schema.schema, schema.table, text, (), pos, self.commit_time_us, self.gtid
                )
            )

    def _on_layouts_changed(self) -> None:
        """Tables have other layouts now."""

    # -- transactions ---------------------------------------------------------------------------------------------

    def _count(self, name: str, rows: int) -> None:
        assert self._emit_mark is not None
        if self._counts is None:
            self._counts = {}
            self._emit_mark(self._mark(begin=True))
        self._counts[name] = self._counts.get(name, 0) + rows

    def _mark(self, *, begin: bool) -> TransactionMark:
        name = self.gtid or f"{self.file}:{self.tx_start}"
        return TransactionMark(begin, name, self._next_pos(1), self.commit_time_us, self.gtid, self._counts or {})

    def _end_marks(self) -> None:
        if self._emit_mark is not None:
            self._emit_mark(self._mark(begin=False))
        self._counts = None
