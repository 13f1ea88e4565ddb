"""Decodes a binlog stream into changes: puts the parts together that each do one thing with it."""

from __future__ import annotations

from collections.abc import Callable

from headrace.model import Position
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.cutter import EventCutter, enter_payload
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.events.event_types import Does, handlers
from headrace.mysql.events.gtid_event import GtidReader
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.events.xa import XaSpool
from headrace.mysql.rows import RowsReader
from headrace.mysql.schema.described import DescribedTables
from headrace.mysql.schema.follower import StatementFollower
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.table_maps import TableMaps
from headrace.ports.source import Receiver


class Decoder:
    """One for each dump. `captures` says of a schema and table whether its rows are wanted; `receiver` takes what is
    found. `history` knows layouts where the binlog does not describe them.

    When `wanted` is set after feed(), that table's layout has to be found, and learned() called, before the next call.
    """

    def __init__(
        self,
        start: DumpStart,
        receiver: Receiver,
        *,
        captures: Callable[[str, str], bool],
        history: SchemaHistory | None = None,
        options: DecoderOptions | None = None,
    ) -> None:
        options = options or DecoderOptions()
        cursor = self._cursor = EventCursor(*start.place, checksums=start.checksums, skip_places=options.skip_events)
        transactions = self._transactions = Transactions(
            cursor, start, XaSpool(options.spool, options.max_spool), receiver.mark
        )
        self._described = DescribedTables(cursor, history)
        maps = TableMaps(cursor, transactions, self._described, captures, options)
        told = frozenset(name for name, wanted in (("ddl", options.ddl), ("dcl", options.dcl)) if wanted)
        statements = StatementFollower(
            cursor, transactions, history, captures, tell=receiver.statement, told=told, changed=maps.forget
        )
        rows = RowsReader(cursor, transactions, maps, statements, receiver, options)
        gtids, texts, nothing = GtidReader(cursor, transactions.begin), options.dml_queries, transactions.on_nothing
        table = handlers(
            lambda event: event.stream,
            {
                Does.PASS: nothing,
                Does.ENTER: enter_payload,
                Does.ROTATE: transactions.on_rotate,
                Does.FORMAT: maps.on_format,
                Does.GTID: gtids.on_gtid,
                Does.TAGGED_GTID: gtids.on_tagged_gtid,
                Does.MARIADB_GTID: transactions.on_mariadb_gtid,
                Does.PREVIOUS_GTIDS: transactions.on_previous_gtids,
                Does.QUERY: statements.on_query_with_origin if options.origins else statements.on_query,
                Does.COMPRESSED_QUERY: statements.on_compressed_query,
                Does.TEXT: statements.on_text if texts else nothing,
                Does.ANNOTATION: statements.on_annotation if texts else nothing,
                Does.TABLE: maps.on_table_map,
                Does.COMMIT: transactions.on_commit,
                Does.XA_PREPARE: transactions.on_xa_prepare,
            },
            rows.handler,
        )
        self._cutter = EventCutter(cursor, table, skipped=transactions.on_skipped, spool=options.spool)
        self.feed = self._cutter.feed
        """See EventCutter.feed."""

    def close(self) -> None:
        """Gives back files that are open; nothing can be fed afterwards."""
        self._cutter.close()
        self._transactions.close()

    # -- layouts --------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> tuple[str, str] | None:
        """The schema and name of a table whose layout has to be found."""
        return self._described.wanted

    def learned(self, why_not: str = "") -> None:
        """Goes on after `wanted`: its layout is in the history now, or can't be found because of `why_not`."""
        self._described.learned(why_not)

    # -- where it is ----------------------------------------------------------------------------------------------

    def position(self) -> Position:
        """From where reading would go on if everything given out so far were confirmed."""
        return self._transactions.position()

    @property
    def place(self) -> tuple[str, int]:
        """File and offset behind the last event."""
        return self._cursor.file, self._cursor.end

    @property
    def checksums(self) -> bool:
        """Whether events end in a checksum here."""
        return self._cursor.checksums

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way."""
        return self._transactions.in_group

    @property
    def commit_time_us(self) -> int:
        """Of the newest transaction, in microseconds since 1970 UTC."""
        return self._transactions.commit_time_us

    @property
    def need(self) -> int:
        """Bytes that the next packet has at least."""
        return self._cutter.need

    @property
    def refused(self) -> bool:
        """Whether the server's own error ended the stream: all before it was given out whole, and the position
        holds."""
        return self._cutter.refused

    @property
    def events(self) -> int:
        """Events so far."""
        return self._cutter.events

    @property
    def skipped(self) -> int:
        """Events passed over at the operator's word."""
        return self._cursor.skipped

    @property
    def transactions(self) -> int:
        """Transactions and lone statements that ended so far."""
        return self._transactions.count
