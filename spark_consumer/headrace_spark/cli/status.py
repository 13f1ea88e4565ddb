"""`headrace-spark status`: the running consumer's report about itself."""

from __future__ import annotations

from typing import Any

from headrace_documents.cli import CommandLine
from headrace_documents.http import add_status, state_rows


def add(line: CommandLine) -> None:
    add_status(line, rows)


def rows(page: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the answer for people."""
    lag, batch = page["lag"], page["batch"] or {}
    lines = list(state_rows(page))
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
    return lines


def _rebuild(one: dict[str, Any]) -> str:
    rows = f", {one['rows']} rows of about {one['rows_about']}" if "rows" in one else ""
    why = f" for {'; '.join(one['conflicts'])}" if one["conflicts"] else ""
    problem = f"; it fails ({one['tries']} tries): {one['problem']}" if one["problem"] else ""
    return f"{one.get('step', one['state'])}{rows}{why}, {one['held']} messages held{problem}"


def _text(value: Any, otherwise: str = "?") -> str:
    return otherwise if value is None else str(value)
