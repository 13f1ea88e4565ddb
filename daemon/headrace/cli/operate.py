"""`headrace pause`, `resume` and `restart`: commands to the running daemon about a whole destination."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace.cli import control
from headrace.cli.common import add_config, operator, print_json

if TYPE_CHECKING:
    from headrace.settings.destination import Settings

_ABOUT = {
    "pause": "Ends a destination's stream in order. It stays paused, over restarts and whichever daemon has it, until "
    "it is resumed; the source's binlogs are purged meanwhile as ever.",
    "resume": "Resumes a paused destination after what was confirmed.",
    "restart": "Ends a destination's stream in order and starts it again, with new connections.",
}
_DONE = {"pause": "is paused", "resume": "goes on", "restart": "was restarted"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    action = parser.prog.rpartition(" ")[2]
    parser.description = _ABOUT[action]
    add_config(parser)
    parser.add_argument("name", metavar="DEST", help="the destination")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(call=_operate, action=action, asks_daemon=True)


async def _operate(settings: Settings, given: argparse.Namespace) -> int:
    answer = await control.command(settings, given.name, given.action, {"by": operator()})
    if given.json:
        print_json(answer)
    else:
        print(f"{given.name}: {_DONE[given.action]}")
    return 0
