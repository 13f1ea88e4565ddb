"""Checks the folders that a daemon writes to: permissions and free space."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.ports.finding import Finding, ok, warning, wrong
from headrace.settings.destination import Settings
from headrace_common.folders import first_folder, try_folder

_LEAST = 1 << 30
"""Bytes that should be free for positions and schema history."""


def check_folders(settings: Settings) -> list[Finding]:
    """Returns a finding for each of the state's folders and the archives, and one for the spool's."""
    found = []
    if settings.cluster is None:  # else neither state nor locks are in files
        states = {settings.state_of(one).path.parent.absolute(): None for one in settings.destinations.values()}
        found = [_check_room("state folder", folder, _LEAST) for folder in states]
    archives = {
        one.archive.path.absolute(): None for one in settings.destinations.values() if one.archive and one.archive.path
    }
    for folder in archives:
        try:
            try_folder(folder)
        except OSError as error:
            sentence = f"the folder {folder} can't be written to ({first_folder(folder)}: {error.strerror})"
            found.append(wrong("archive", sentence, "check its owner and rights, and [archive] path"))
        else:
            found.append(_check_room("archive", folder, _LEAST))
    spools = sum(one.source.max_spool for one in settings.destinations.values())
    spool = settings.daemon.spool.absolute()
    try:
        try_folder(spool)
    except OSError as error:
        sentence = f"the folder {spool} can't be written to ({first_folder(spool)}: {error.strerror})"
        return [*found, wrong("spool", sentence, "check its owner and rights, and [daemon] spool")]
    return [*found, _check_room("spool", spool, max(_LEAST, spools))]


def _check_room(name: str, folder: Path, least: int) -> Finding:
    there = first_folder(folder)
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return warning(name, f"the free space of {there} can't be read ({error.strerror})")
    if free >= least:
        return ok(name, f"{folder} has {_text(free)} of room")
    more = f", and max_spool lets destinations take {_text(least)}" if name == "spool" else ""
    return warning(name, f"{folder} has no more than {_text(free)} of room{more}", "make room on that disk")


def _text(size: int) -> str:
    return f"{size / (1 << 30):,.2f} GiB"
