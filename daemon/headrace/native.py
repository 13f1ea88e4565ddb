"""headrace-native: native code for per-row work, if headrace was built with a Rust toolchain."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from headrace import __version__

INTERFACE = 16
"""The version of the interface that this code calls; the functions of another may mean something else."""
NONE = "installed without native code, which takes about five times the CPU: docs/install.md#native-code"
PANIC = "PanicException"
"""The name of the error for a bug in native code; not an Exception, so that a destination would not be restarted."""
PANIC_REMEDY = 'set [daemon] native = "off", so that Python reads it, and report it'
Choice = Literal["auto", "off"]
"""[daemon] native."""


@dataclass(frozen=True, slots=True)
class Native:
    """The available native code. `module` is None if Python does all of the work, and `reason` says why."""

    module: Any
    version: str
    reason: str = ""

    def __str__(self) -> str:
        return f"headrace-native {self.version}" if self.module is not None else f"Python ({self.reason})"


@cache
def find(choice: Choice = "auto") -> Native:
    """Returns headrace-native, unless headrace is installed without it, it has another interface, or it is switched
    off."""
    if choice == "off":
        return Native(None, "", 'off: [daemon] native = "off"')
    try:
        module = importlib.import_module("headrace_native")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "headrace_native"
        return Native(None, "", NONE if missing else f"headrace-native fails: {error}")
    interface, version = getattr(module, "INTERFACE", None), str(getattr(module, "__version__", "unknown"))
    if interface != INTERFACE:
        return Native(None, "", f"headrace-native {version} has interface {interface}, not {INTERFACE}")
    if version != __version__:
        return Native(None, "", f"headrace-native {version} is not of version {__version__}, which headrace has")
    return Native(module, version)
