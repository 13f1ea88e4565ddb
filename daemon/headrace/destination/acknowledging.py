"""Acknowledges to a semi-synchronous source what the sink has confirmed, while a run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.destination.dependencies import Context
from headrace.errors import HeadraceError
from headrace.ports.source import Acknowledger, Confirmed
from headrace.tasks import again

_TROUBLE = "semi_sync"
_CONFIRMED = "the sink has confirmed a transaction"


def note_waiting(context: Context, why: str, until: str) -> None:
    """Reports why the source does not wait; "" if it does. `until`: what it should wait for, as the end of a
    sentence."""
    if not why:
        context.status.clear(_TROUBLE)
        return
    text = f"the source does not wait until {until}: {why}"
    if context.status.trouble(_TROUBLE, text, remedy="see docs/archive.md#semi-synchronous-acknowledgement"):
        context.log.warning("the source does not wait for us", why=why)


@contextmanager
def noted_pause(context: Context) -> Iterator[None]:
    """Reports, while its body runs, that a paused destination acknowledges nothing, if it acknowledges what its sink
    has confirmed."""
    if context.settings.source.semi_sync != "sink":
        yield
        return
    note_waiting(context, "the destination is paused", _CONFIRMED)
    try:
        yield
    finally:
        context.status.clear(_TROUBLE)


async def acknowledge(context: Context, acknowledger: Acknowledger, confirmed: Confirmed) -> None:
    """Runs an acknowledger, and again after it fails, until cancelled."""

    def report(why: str) -> None:
        note_waiting(context, why, _CONFIRMED)

    async def run() -> None:
        try:
            await acknowledger.run(confirmed, report)
        except HeadraceError as error:
            report(error.operator_text(context.name))

    try:
        await again(run)
    finally:
        context.status.clear(_TROUBLE)
