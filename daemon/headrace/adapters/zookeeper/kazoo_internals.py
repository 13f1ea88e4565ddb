"""Uses of kazoo below its public interface, which are only here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient

KNOWN_VERSIONS = {"kazoo": ("2.11.0",)}
"""Versions that this was tested with, on real ensembles. It relies on the client's _connection, and on the _invoke() of
that, which returns the servers' answer to the first request of each connection as the first part of a tuple."""


def on_session_timeout(client: KazooClient, report: Callable[[float], None]) -> None:
    """Calls `report` in kazoo's thread with the session timeout that the servers grant, in seconds, after each
    connection: kazoo does not keep it."""
    connection = client._connection
    invoke = connection._invoke

    def observed(*arguments: Any, **more: Any) -> Any:
        answer = invoke(*arguments, **more)
        if isinstance(answer, tuple) and (granted := getattr(answer[0], "time_out", 0)) > 0:
            report(granted / 1000)
        return answer

    connection._invoke = observed
