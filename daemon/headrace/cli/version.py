"""`headrace version`: the versions of headrace, Python, the native code, and the libraries."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata

from headrace import __version__
from headrace.cli.common import print_json
from headrace.native import find
from headrace.ports.registry import origin, outside

_PARTS = ("aiomysql", "aiokafka", "aio-pika", "kazoo", "rocketmq-python-client", "uvloop")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Shows the versions of headrace, Python, installed clients, and adapters of other packages."
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=_show)


def _show(given: argparse.Namespace) -> int:
    found = {"headrace": __version__, "Python": platform.python_version(), **dict(filter(None, map(_part, _PARTS)))}
    for entry in outside():  # two distributions may have one of the same name
        found[entry.name] = ", ".join(filter(None, (found.get(entry.name), origin(entry))))
    native = find()
    found["headrace-native"] = native.version or f"none: {native.reason}"
    if given.json:
        print_json(found)
    else:
        print("\n".join(f"{name} {version}" for name, version in found.items()))
    return 0


def _part(name: str) -> tuple[str, str] | None:
    try:
        return name, metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
