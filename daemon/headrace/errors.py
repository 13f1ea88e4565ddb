"""The root of headrace's errors: each has whether it is retriable and what the operator can do."""

from __future__ import annotations

from enum import StrEnum

from headrace.model import State

_MANUAL = "docs/troubleshooting.md#"


def named(text: str, destination: str) -> str:
    """Returns the text with the destination's name in place of the word DESTINATION; "" leaves the word."""
    return text.replace("DESTINATION", destination) if destination else text


def guided(text: str, section: str) -> str:
    """Returns a text for an operator that ends with the section of the manual about it, unless it already names one."""
    if _MANUAL in text:
        return text
    see = f"see {_MANUAL}{section}"
    return f"{text} -> {see}" if text else see


class HeadraceError(Exception):
    """Base of all errors, in words for an operator.

    `state` is the state that the destination takes; `retriable` is whether an automatic retry can help; `remedy` is a
    sentence, or the SQL, that fixes the cause; the word DESTINATION in it is replaced by the destination's name."""

    state: State = State.FAILED
    reason: str = "error"
    """One word for monitoring. A class without its own has that of its base."""
    section: str = ""
    """The section of docs/troubleshooting.md about it, if that is not its reason's."""
    retriable: bool = True
    final: bool = False
    """Whether nothing can fix it while the process lives."""

    def __init__(self, message: str, *, remedy: str = "", retriable: bool | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy
        if retriable is not None:
            self.retriable = retriable

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} -> {self.remedy}" if self.remedy else message

    @property
    def help(self) -> str:
        """Returns where the manual says more."""
        return _MANUAL + (self.section or self.reason)

    def operator_text(self, destination: str = "") -> str:
        """Returns the text for the operator of this destination, with the section of the manual at its end."""
        return guided(named(str(self), destination), self.section or self.reason)


class Refusal(HeadraceError):
    """What was requested can't be done in the present state; the text says why."""

    reason = "refused"
    retriable = False


class ConfigError(HeadraceError):
    """The configuration is wrong. `problems` lists every fault found, each with file, key and a sentence."""

    reason = "config"
    retriable = False

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class SourceError(HeadraceError):
    """The MySQL server can't be reached or does not answer as it should."""

    reason = "source"


class SourceUnreachable(SourceError):
    """No connection to the server could be made: another address may answer."""


class SourceEnded(SourceError):
    """A running dump ended: the server closed it or stopped, or the network failed. The position is still valid."""


class ContinuesElsewhere(SourceEnded):
    """A dump ended, and another place has what follows: the archive, or after its end the source again."""


class SourceSilent(SourceError):
    """Nothing came from the source for longer than its heartbeats allow: the connection is dead."""

    state = State.STALLED


class SourceMisconfigured(SourceError):
    """The server's settings or grants don't allow a complete stream; the remedy has the SQL."""


class BinlogOff(SourceMisconfigured):
    """The server writes no binlog."""


class GrantMissing(SourceMisconfigured):
    """The account lacks a right; the remedy has the GRANT."""


class SourceRefused(SourceMisconfigured):
    """The server is not one that the configuration accepts: read-only, or too far behind its own source."""


class LostKind(StrEnum):
    """Why a source can't serve a position. `on_position_lost` may act on each of these."""

    POSITION_PURGED = "position_purged"
    """Its file is no longer listed, or is listed but missing on disk."""
    GTIDS_PURGED = "gtids_purged"
    """Transactions that were not read yet are in no binlog of the source any more."""
    BEYOND_END = "beyond_end"
    """The file is shorter than the position (after a crash, or another file under the same name)."""
    TRUNCATED = "truncated"
    """The file ends in the middle of an event, or the position lies in the middle of one: the server's error text is
    the same."""
    STATE_LOST = "state_lost"
    """Nothing is stored of a destination that has run before: its state store was lost, or is a different one."""


class PositionLost(SourceError):
    """The source can no longer serve the stored position. `kind` says why; `position` is where the source stopped
    reading, `file:offset`, if it said so."""

    state = State.POSITION_LOST
    section = "position_lost"
    retriable = False

    def __init__(self, message: str, *, kind: LostKind, position: str = "", remedy: str = "") -> None:
        choose = "choose where to go on with 'headrace position set DESTINATION WHERE'"
        super().__init__(message, remedy=remedy or choose)
        self.kind, self.section = kind, kind.value
        self.position = position


class SourceChanged(SourceError):
    """The server that answers is not the one, or has not the history, that the position belongs to. `extra` are the
    transactions that were published and that the server has not executed, as a GTID set; "" without GTIDs."""

    state = State.SOURCE_CHANGED
    section = "source_changed"
    retriable = False

    def __init__(self, message: str, *, extra: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.extra = extra


class ServerIdTaken(SourceError):
    """Another replica reads with our server id. `disconnected`: the source ended our dump because of it, and would end
    its dump because of ours; else it was only seen, which disturbs nobody."""

    state = State.SERVER_ID_TAKEN
    section = "server_id_taken"
    retriable = False

    def __init__(self, message: str, *, disconnected: bool = False, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.disconnected = disconnected


class NotUnderstood(HeadraceError):
    """headrace does not understand an event, a row image or a value: it stops instead of skipping it."""

    reason = "error"
    retriable = False


class SchemaDiffers(NotUnderstood):
    """The source's table differs from the schema history: it was changed without a statement in the binlog."""

    reason = "schema_differs"

    def __init__(self, message: str) -> None:
        remedy = (
            "names of columns would be wrong in rows since that change: continue after it with 'headrace position set "
            "DESTINATION WHERE --read-schemas'"
        )
        super().__init__(message, remedy=remedy)


class BinlogCorrupt(NotUnderstood):
    """Bytes of the binlog are damaged on the source; the source may report this itself."""


class WrongChecksum(BinlogCorrupt):
    """The CRC32 of an event is wrong: it was damaged in transit or on the source."""


class SinkError(HeadraceError):
    """The sink did not confirm; everything from the confirmed position on is sent again."""

    reason = "sink"
    state = State.STALLED


class SinkRejected(SinkError):
    """The sink refuses a message permanently (too large, not allowed)."""

    state = State.FAILED


class OutputClosed(SinkError):
    """Nobody reads our standard output any more, and no reader can return."""

    state = State.FAILED
    retriable = False
    final = True


class FormatError(HeadraceError):
    """The message format can't make messages of a table at present: a service that it needs does not answer."""

    reason = "format"


class Fenced(HeadraceError):
    """Another daemon runs this destination with a higher epoch; this one must not write any more."""

    reason = "fenced"
    state = State.STANDBY


class SplitBrain(HeadraceError):
    """Another daemon runs this destination without sharing our lock; ours does not run it while that continues."""

    reason = "split_brain"
    retriable = False


class LeaseLapsed(HeadraceError):
    """The lock can't be proved at present, so nothing may be published; it may still be ours."""

    reason = "lock"
    state = State.STALLED


class LockServiceError(HeadraceError):
    """The lock service can't be reached, or does not answer as it should."""

    reason = "lock"


class StateStoreError(HeadraceError):
    """The state store can't be read or written."""

    reason = "state"


class ArchiveError(HeadraceError):
    """The archive of binlogs can't be read or written, or is damaged."""

    reason = "archive"


class ArchiveDamaged(ArchiveError):
    """Something in the archive is not what was stored there."""


class ArchiveNotKept(ArchiveError):
    """The archive can't be written, and the destination must not stream without it."""


class SpoolError(HeadraceError):
    """The folder for large events and undecided rows can't be written to."""

    reason = "state"
