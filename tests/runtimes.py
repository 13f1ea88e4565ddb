"""Runtimes for tests."""

from __future__ import annotations

from contextvars import copy_context
from typing import TypeVar

from headrace.runtime import CURRENT, Runtime

T = TypeVar("T")


def of_process(process: Runtime, kind: type[T]) -> T:
    """Returns a process's only instance of a class."""

    def made() -> T:
        CURRENT.set(process)
        return process.only(kind)

    return copy_context().run(made)
