"""Values of command-line options that commands of the daemon and of the consumers share."""

from __future__ import annotations

import argparse

from headrace_common.values import parse_duration


def positive(text: str) -> int:
    """Returns the value of an option that is an integer from 1 on. Raises ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"'{text}' should be a whole number of 1 or more")
    return int(text)


def duration(text: str) -> float:
    """Returns the seconds of an option that is a duration of at most a day. Raises ArgumentTypeError."""
    try:
        seconds = float(parse_duration(text))
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError("should be longer than nothing, and a day at most")
    return seconds
