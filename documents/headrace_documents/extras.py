"""What a command says when a package that it needs is not installed."""

from __future__ import annotations

import sys
from typing import NoReturn


def exit_without(error: ModuleNotFoundError, command: str, extra: str) -> NoReturn:
    """Ends the process with one sentence and status 2; raises the error again when it is a fault of ours."""
    name = (error.name or "").partition(".")[0]
    if not name or name.startswith("headrace"):
        raise error
    print(f"{command} needs the Python package {name}: pip install 'headrace[{extra}]'", file=sys.stderr)
    raise SystemExit(2)
