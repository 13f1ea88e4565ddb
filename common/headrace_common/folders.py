"""Checks whether a folder may be written to, without leaving anything there."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile


def first_folder(folder: Path) -> Path:
    """Returns the folder itself, or the nearest existing one above it."""
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(one))


def try_folder(folder: Path) -> None:
    """Creates a file without a name, which is gone when this returns, in the folder or where that would be created.
    Raises OSError. Permissions alone are not enough: root has all of them, and still may be unable to write to
    /proc."""
    with TemporaryFile(dir=first_folder(folder)):
        pass
