"""promtool, which looks through Prometheus' rules and plays series to them; from Debian bookworm, unpacked into the
cache."""

from __future__ import annotations

from devstack import apt
from devstack.cache import Cache

SUITE = "bookworm"
PROGRAM = "usr/bin/promtool"
# Of the server's package it is the program alone that is wanted.
WITHOUT = (
    "adduser", "debconf", "daemonize", "fonts-glyphicons-halflings", "libjs-bootstrap4",
    "libjs-eonasdan-bootstrap-datetimepicker",
    "libjs-jquery", "libjs-jquery-hotkeys", "libjs-moment", "libjs-moment-timezone", "libjs-mustache",
    "libjs-popper.js", "libjs-rickshaw", "node-moment", "init-system-helpers", "sysvinit-utils", "lsb-base", "tzdata",
)  # fmt: skip


def command(cache: Cache) -> list[str]:
    """The words that start it; it is installed when it is missing."""
    return apt.install(cache, "promtool", SUITE, ("prometheus",), (), PROGRAM, WITHOUT).argv(PROGRAM)
