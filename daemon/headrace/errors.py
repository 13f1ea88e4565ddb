"""The root of headrace's errors: each says whether it is retriable and what the operator can do."""

from __future__ import annotations

from headrace.model import State


class HeadraceError(Exception):
    """Something went wrong, in words for an operator.

    `state` is the state that the destination takes; `retriable` says whether trying again by itself can help;
    `remedy` is a sentence, or the SQL, that mends it.
    """

    state: State = State.FAILED
    retriable: bool = True

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} -> {self.remedy}" if self.remedy else message


class ConfigError(HeadraceError):
    """The configuration is wrong; `problems` lists every fault found, each with file, key and a sentence."""

    retriable = False

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class SourceError(HeadraceError):
    """The MySQL side can't be reached or does not answer as it should."""


class SourceSilent(SourceError):
    """Nothing came from the source for longer than its heartbeats allow: the connection is dead."""

    state = State.STALLED


class SourceMisconfigured(SourceError):
    """The server's settings or grants don't allow a complete stream; the remedy holds the SQL."""


class PositionLost(SourceError):
    """The source can't serve the stored position any more."""

    state = State.POSITION_LOST


class SourceChanged(SourceError):
    """Another server answers than the one that the position belongs to."""

    state = State.SOURCE_CHANGED


class ServerIdTaken(SourceError):
    """Another replica reads with our server id."""

    state = State.SERVER_ID_TAKEN


class NotUnderstood(HeadraceError):
    """An event, a row image or a value that headrace does not understand: it stops rather than skip."""

    retriable = False


class SinkError(HeadraceError):
    """The sink did not confirm; everything from the confirmed position is sent again."""

    state = State.STALLED


class SinkRejected(SinkError):
    """The sink refuses a message for good (too large, not allowed)."""

    state = State.FAILED


class Fenced(HeadraceError):
    """Somebody with a higher epoch runs this destination; nothing of ours may be written any more."""

    state = State.STANDBY


class StateStoreError(HeadraceError):
    """The state store can't be read or written."""
