"""Assembles a run. All calls between its components are connected here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.destination.control import Control
from headrace.destination.emptied import EmptiedTopics
from headrace.destination.heartbeat_writer import HeartbeatWriter
from headrace.destination.publisher import Publisher
from headrace.destination.reading import Reading
from headrace.destination.run import Lasting, Run, RunDependencies
from headrace.destination.snapshotting import Snapshotting
from headrace.destination.stall import StallDetector
from headrace.destination.unreadable import UnreadableTables
from headrace.model import Position
from headrace.native import find
from headrace.parking.redelivery import Redelivery
from headrace.pipeline.message_builder import MessageBuilder, make_builder
from headrace.pipeline.native_output import NativeUse, reason_of_destination
from headrace.ports.source import OpenSource, Receiver, SecondConnection
from headrace.snapshot.merge import SnapshotMerge
from headrace.snapshot.stored_keys import StoredKeys


@dataclass(frozen=True, slots=True)
class Hangs:
    """What is known of events on which event loops hang."""

    note: Callable[[str], str] = lambda place: place
    """See watchdog.Cover.note; receives `file:offset` of the event that is being read, "" if there is none."""
    passed_over: str = ""
    """See Receiver.hung."""


def assemble(
    lasting: Lasting,
    source: OpenSource,
    publisher: Publisher,
    heartbeats: HeartbeatWriter,
    second: SecondConnection,
    begin: Position,
    hangs: Hangs,
) -> Run:
    """Returns a run from `begin`, which is stored; nothing of it has started."""
    context, checkpointer = lasting.context, lasting.checkpointer
    settings, epoch = context.settings, checkpointer.guard.epoch
    builder = _builder(lasting, source.start.server_uuid, epoch)
    projections = builder.projections
    merge = SnapshotMerge(
        begin.snapshots,
        builder.captures,
        builder.emit,
        builder.full,
        emit_large=builder.emit_large,
        epoch=epoch,
        snapshot_pos=begin.snapshot_pos,
        rows=settings.filter.rows,
        keys=StoredKeys(settings.filter.salts),
        shows=projections.shows,
        decides=projections.decides,
        published=projections.published,
        native=builder.native,
    )
    unreadable = UnreadableTables(context, source.reader)
    emptied = EmptiedTopics(context, lasting.dependencies.ends, projections.topic_of)
    reading = Reading(context, builder, merge, publisher, checkpointer, lasting.unconfirmed)
    control = Control(context, merge, reading, source.reader, checkpointer)
    unprepared = builder.preparation.unprepared if builder.preparation is not None else None
    reading.start(
        source,
        Receiver(
            rows=merge.rows,
            large=merge.large,
            alone=publisher.queue.alone,
            hung=hangs.passed_over,
            table=unreadable.seen if unreadable.wanted else None,
            statement=builder.emit_schema,
            unprepared=unprepared,
            mark=builder.emit_mark if settings.wants_marks else None,
            heartbeat=heartbeats.seen,
            unlogged=reading.note_unlogged,
            altered=merge.altered,
            signal=control.signal,
            begin=builder.tick,
            full=builder.full,
            between=reading.wants_snapshot,
            native=builder.native,
        ),
    )
    snapshotting = Snapshotting(context, merge, reading.stream, source.reader, unreadable.left_out, unprepared)
    control.report, control.resynced = snapshotting.report, emptied.resynced
    merge.ended, merge.wake = control.note_ended, reading.stream.wake
    if builder.native is not None:
        builder.native.watch = lambda: frozenset(merge.tables)  # which need the rows of the stream
    publisher.hangs = lambda: hangs.note(reading.stream.reading)
    checkpointer.begin_run(publisher, begin)
    stalls = StallDetector(context, second)
    return Run(
        lasting,
        RunDependencies(
            source.version,
            reading,
            publisher,
            heartbeats,
            stalls,
            merge,
            snapshotting,
            control,
            unreadable,
            emptied,
            _redelivery(lasting, publisher),
        ),
    )


def _builder(lasting: Lasting, server_uuid: str, epoch: int) -> MessageBuilder:
    settings, native, fmt = (
        lasting.context.settings,
        find(lasting.context.daemon.native),
        lasting.dependencies.new_format(),
    )
    reason = reason_of_destination(settings, fmt, native.reason)
    builder = make_builder(settings, fmt, server_uuid, epoch, None if reason else native.module)
    status = lasting.context.status
    status.note_rows_by(builder.native.use if builder.native is not None else NativeUse(reason))
    if builder.native is not None:
        builder.native.named = status.published.tables.named
    return builder


def _redelivery(lasting: Lasting, publisher: Publisher) -> Redelivery | None:
    if publisher.parking is None:
        return None
    context, checkpointer = lasting.context, lasting.checkpointer
    return Redelivery(
        context.settings.parking,
        publisher.parking,
        lambda: publisher.resending,
        lambda: checkpointer.guard,
        context.log,
    )
