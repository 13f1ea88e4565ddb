"""The findings of `headrace check` about native code: which tables' rows it makes, and why not the others'."""

from __future__ import annotations

import contextlib

from headrace.errors import HeadraceError
from headrace.native import find
from headrace.pipeline.native_output import reason_of_destination, reason_of_table
from headrace.pipeline.projection import Projections
from headrace.ports.finding import Finding, ok
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.ports.inspection import Schemas
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings

_NAMED = 5
"""Maximum number of tables that a line names."""


def native_use(
    daemon: DaemonSettings,
    destination: DestinationSettings,
    fmt: ValueFormat | KeyedFormat,
    tables: Schemas,
) -> list[Finding]:
    """Returns which captured tables native code reads, and why not the others; rules that match none are reported
    elsewhere."""
    native = find(daemon.native)
    if reason := reason_of_destination(destination, fmt, native.reason):
        return [ok("native", f"Python makes the rows: {reason}")]
    projections, sink = Projections(destination, fmt), destination.sink.capabilities
    reasons = dict[str, str]()
    for schema in tables.values():
        if not projections.captures(schema.schema, schema.table):
            continue
        with contextlib.suppress(HeadraceError):
            reasons[schema.name] = reason_of_table(projections.of(schema), fmt, one_log=sink.one_log, units=sink.units)
    of_python = [f"{name} ({reason})" for name, reason in sorted(reasons.items()) if reason]
    if not of_python:
        return [ok("native", f"native code makes the rows of all {len(reasons)} tables")] if reasons else []
    more = f" and {len(of_python) - _NAMED} more" if len(of_python) > _NAMED else ""
    sentence = f"Python makes the rows of {len(of_python)} of {len(reasons)} tables: {', '.join(of_python[:_NAMED])}"
    return [ok("native", sentence + more)]
