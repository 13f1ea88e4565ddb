"""`headrace-spark status`: what the running consumer says of itself."""

from __future__ import annotations

import argparse
import http.client
import json
from typing import Any

from headrace_documents.errors import ConsumerError
from headrace_spark.cli.common import Commands, add_command
from headrace_spark.settings import load_settings

LIMIT = 5.0
"""Seconds for the answer."""


class SilentError(ConsumerError):
    """Nobody answers at the address of [http] listen."""


def add(commands: Commands) -> None:
    command = add_command(commands, "status", "ask the running consumer how it is")
    command.add_argument("--json", action="store_true", help="print the answer of /health")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    address = load_settings(options.config).http.address
    if address is None:
        raise SilentError(f"{options.config}: [http] listen is empty, so the consumer can't be asked")
    page = ask(*address)
    print(json.dumps(page, indent=2) if options.json else table(page))
    return 0


def ask(host: str, port: int) -> dict[str, Any]:
    """The answer of /health. Raises SilentError."""
    connection = http.client.HTTPConnection(host, port, timeout=LIMIT)
    try:
        connection.request("GET", "/health")
        page = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise SilentError(
            f"no headrace-spark answers at {host}:{port} ({why.lower()}): "
            "is `headrace-spark run` started with this file?"
        ) from None
    finally:
        connection.close()
    if not isinstance(page, dict) or "state" not in page:
        raise SilentError(f"what answers at {host}:{port} is no headrace-spark: see [http] listen")
    return page


def table(page: dict[str, Any]) -> str:
    """The answer for people."""
    lag, batch = page["lag"], page["batch"] or {}
    lines = [("state", f"{page['state']} since {page['since']}")]
    lines += [
        ("", f"{one['cause']} (for {one['seconds']:.0f} s, {one['tries']} tries; {one['waits']} wait)")
        for one in page["causes"]
    ]
    lines += [
        ("lag", f"{_text(lag['messages'])} messages, {_text(lag['seconds'])} s"),
        ("oldest unread", _text(lag["oldest_commit"], "none")),
        ("caught up in", f"{_text(lag['caught_up_in_seconds'])} s"),
        ("rate", f"{page['messages_per_second']} messages/s, {page['rows_per_second']} rows/s"),
        ("last batch", f"{batch['id']}: {batch['messages']} messages in {batch['seconds']} s" if batch else "none yet"),
        ("done", f"{page['messages']} messages, {page['rows']} rows, {page['batches']} batches"),
        ("dead letters", str(page["dead_letters"])),
        *((f"rebuild {index}", _rebuild(one)) for index, one in page["rebuilds"].items()),
        ("retries", f"{page['retries']}, failures of the query {page['failures']}"),
    ]
    if (error := page["last_error"]) is not None:
        lines.append(("last error", f"{error['at']}: {error['reason']}. {error['remedy']}".rstrip(". ")))
    for index, results in page["indexes"].items():
        lines.append((f"index {index}", ", ".join(f"{count} {what}" for what, count in results.items())))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _rebuild(one: dict[str, Any]) -> str:
    rows = f", {one['rows']} rows of about {one['rows_about']}" if "rows" in one else ""
    why = f" for {'; '.join(one['conflicts'])}" if one["conflicts"] else ""
    problem = f"; it fails ({one['tries']} tries): {one['problem']}" if one["problem"] else ""
    return f"{one.get('step', one['state'])}{rows}{why}, {one['held']} messages held{problem}"


def _text(value: Any, otherwise: str = "?") -> str:
    return otherwise if value is None else str(value)
