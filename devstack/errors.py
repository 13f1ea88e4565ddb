"""The exceptions of devstack: each text is one sentence that a user can act on."""


class DevstackError(Exception):
    """Anything devstack reports without a traceback."""


class BadRequest(DevstackError):
    """The caller asked for something that does not exist or makes no sense."""


class Unavailable(DevstackError):
    """A server or tool can't be had on this machine, for example because the package mirror lacks it."""


class StartFailed(DevstackError):
    """A server was started and did not get ready."""


class PortTaken(StartFailed):
    """A server did not get ready because somebody else listens on its port."""
