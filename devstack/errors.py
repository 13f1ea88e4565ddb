"""The exceptions of devstack: each text is one sentence that a user can act on."""


class DevstackError(Exception):
    """Anything devstack reports without a traceback."""


class BadRequest(DevstackError):
    """The request names something that does not exist or is invalid."""


class Unavailable(DevstackError):
    """A server or tool is not available on this machine, for example because the package mirror lacks it."""


class StartFailed(DevstackError):
    """A server was started and did not become ready."""


class PortTaken(StartFailed):
    """A server did not become ready because another program uses its port."""
