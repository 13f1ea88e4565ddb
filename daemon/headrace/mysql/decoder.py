"""Decodes a binlog stream into changes: combines the components that each do one part of this."""

from __future__ import annotations

from collections.abc import Callable

from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.events.event_types import STATEMENTS, TABLE_MAP, Does, handlers
from headrace.mysql.events.gtid_event import GtidReader
from headrace.mysql.events.splitter import EventSplitter, enter_payload
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.events.xa import GroupSpool
from headrace.mysql.native_parts import NativeParts
from headrace.mysql.native_reader import NativeReader
from headrace.mysql.rows import RowsReader
from headrace.mysql.schema.comparison import SchemaComparison
from headrace.mysql.schema.described import DescribedTables
from headrace.mysql.schema.follower import StatementFollower
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.table_maps import TableMaps
from headrace.ports.source import Receiver


class Decoder:
    """The decoder of one dump. `captures` returns whether the rows of a schema and table are captured; `receiver` takes
    the changes. `history` knows table schemas that the binlog does not describe, and `comparison` is set if they are
    compared with the source's. With `apart` the caller handles `statements.waiting`.

    Its components may be read: `splitter`, `cursor`, `transactions`, and `described`. If `described.wanted` is set
    after feed(), that table's schema must be found or compared, and `described.learned()` called, before the next call.
    refresh() must be called when anything but the stream has changed the history."""

    def __init__(
        self,
        start: DumpStart,
        receiver: Receiver,
        *,
        captures: Callable[[str, str], bool],
        history: SchemaHistory | None = None,
        options: DecoderOptions | None = None,
        comparison: SchemaComparison | None = None,
        apart: bool = False,
    ) -> None:
        options = options or DecoderOptions()
        cursor = self.cursor = EventCursor(
            *start.file_position, checksums=start.checksums, skip_positions=options.skip_events
        )
        transactions = self.transactions = Transactions(
            cursor, start, GroupSpool(options.spool, options.max_spool), receiver.mark
        )
        self.described = DescribedTables(cursor, history, comparison, positional=options.positional)
        asked = receiver.table, receiver.unprepared
        maps = self.maps = TableMaps(cursor, transactions, self.described, captures, options, *asked)
        reported = frozenset(name for name, wanted in (("ddl", options.ddl), ("dcl", options.dcl)) if wanted)
        statements = self.statements = StatementFollower(
            cursor,
            transactions,
            history,
            captures,
            receiver=receiver,
            reported=reported,
            changed=maps.forget,
            largest=options.max_event,
            apart=apart,
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
                Does.COMMIT: transactions.commit,
                Does.XA_PREPARE: transactions.on_xa_prepare,
            },
            rows.handler,
        )

        def on_skipped(kind: int, data: bytes, at: int, stop: int) -> None:
            if kind == TABLE_MAP:
                maps.forget_numbers()  # later rows are not those of a table that had its number before
            transactions.on_skipped(kind, data, at, stop)
            if kind in STATEMENTS and history is not None:
                history.doubt("a statement was passed over", cursor.file, cursor.event_start, transactions.given)
                maps.forget()
                if receiver.altered is not None:
                    receiver.altered(None, ())

        self.splitter = EventSplitter(
            cursor,
            table,
            skipped=on_skipped,
            spool=options.spool,
            largest=options.max_event,
            hung=receiver.hung,
        )
        if receiver.native is not None and not receiver.hung:  # else each event is checked
            native = NativeReader(receiver.native, cursor, transactions, statements, options)
            self.splitter.fast = maps.native = native
            native.learned = maps.learned
            rows.native = NativeParts(native, receiver.native, cursor, transactions, options)
        self.feed, self.position = self.splitter.feed, transactions.position
        self.refresh = maps.refresh

    def close(self) -> None:
        """Closes open files; nothing can be fed afterwards."""
        self.splitter.close()
        self.transactions.close()
        self.maps.clear()
