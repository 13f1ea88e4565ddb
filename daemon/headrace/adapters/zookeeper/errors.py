"""What a call to ZooKeeper can end in, besides success."""

from __future__ import annotations

from typing import Literal

from headrace.errors import LockServiceError

Why = Literal["no_node", "node_exists", "bad_version", "not_empty", "no_auth", "other"]


class ZooKeeperError(LockServiceError):
    """ZooKeeper can't be reached, or does not answer as it should."""

    reason = "zookeeper"


class Refused(ZooKeeperError):
    """The servers answered, and nothing was done. `index` is the operation of a multi that did not fit."""

    def __init__(self, message: str, why: Why, index: int = 0, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.why = why
        self.index = index


class Disconnected(ZooKeeperError):
    """There is no connection at present; nothing was asked for."""


class OutcomeUnknown(ZooKeeperError):
    """The connection broke, or the time was over, before the answer came: what was asked for may be done or not."""


class SessionOver(ZooKeeperError):
    """The session that this was meant for has ended, and with it every ephemeral node."""


class NodeNameTaken(ZooKeeperError):
    """Another live daemon goes by our name."""

    retriable = False
