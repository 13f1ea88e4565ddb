"""Whether a folder may be written to, tried without leaving anything there."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryFile


def first_folder(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(one))


def try_folder(folder: Path) -> None:
    """Makes a file without a name, which is gone when this returns, in the folder or where that would be made. Raises
    OSError. Rights alone do not tell: root has all of them, and may still not write to /proc."""
    with TemporaryFile(dir=first_folder(folder)):
        pass
