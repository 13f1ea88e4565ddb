"""The command line: installs servers, runs them in the foreground, prints the Java home."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from devstack import java
from devstack.cache import Cache
from devstack.errors import BadRequest, DevstackError
from devstack.ports import parse_ports
from devstack.progress import say
from devstack.servers import KINDS, Handle
from devstack.stack import Stack


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise BadRequest(f"{message}; see python3 -m devstack --help.")


def build_parser() -> Parser:
    """Returns the parser with all commands and their options."""
    parser = Parser(prog="devstack", description="Real servers on loopback for demo, tests and benchmarks.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    install = commands.add_parser("install", help="download servers into the cache (all when none is named)")
    install.add_argument("names", nargs="*", metavar="SERVER", help=", ".join(KINDS))
    up = commands.add_parser("up", help="start servers and stay in the foreground until Ctrl-C")
    up.add_argument("names", nargs="+", metavar="SERVER", help=", ".join(KINDS))
    up.add_argument("--port", action="append", default=[], metavar="NAME=PORT", help="a fixed port, e.g. mysql=3306")
    up.add_argument("--json", action="store_true", help="print all endpoints as one line of JSON when ready")
    up.add_argument("--keep", action="store_true", help="leave data and logs in the cache")
    commands.add_parser("java", help="print the JAVA_HOME in use, installing a runtime when there is none")
    return parser


def check_names(names: Sequence[str]) -> list[str]:
    """Returns the names without repetition; an unknown one is an error."""
    for name in names:
        if name not in KINDS:
            raise BadRequest(f"there is no server '{name}'; the known ones are {', '.join(KINDS)}.")
    return list(dict.fromkeys(names))


def install(names: Sequence[str]) -> None:
    """Installs the named servers, or all."""
    cache = Cache()
    for name in check_names(names) or list(KINDS):
        began = time.monotonic()
        say(f"installing {name} {KINDS[name].version} ...")
        KINDS[name].install(cache)
        say(f"{name} {KINDS[name].version} is installed ({time.monotonic() - began:.1f} s)")


def up(options: argparse.Namespace) -> None:
    """Starts the servers in parallel, prints where they are, and waits for a signal."""
    names = check_names(options.names)
    wanted = parse_ports(options.port, names)

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    with Stack(keep=options.keep, lasting=True) as stack:
        try:
            with ThreadPoolExecutor(len(names)) as pool:
                started = {name: pool.submit(stack.start, name, wanted.get(name)) for name in names}
                handles = {name: future.result() for name, future in started.items()}
            _print(handles, options.json)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            say("stopping ...")


def _print(handles: dict[str, Handle], as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: handle.endpoint() for name, handle in handles.items()}), flush=True)
        return
    for name, handle in handles.items():
        print(f"{name} {handle.address}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns 0 for success, 1 if a server can't be installed or started, 2 for bad input."""
    try:
        options = build_parser().parse_args(arguments)
        if options.command == "install":
            install(options.names)
        elif options.command == "up":
            up(options)
        else:
            print(java.home())
    except BadRequest as error:
        sys.stderr.write(f"devstack: {error}\n")
        return 2
    except DevstackError as error:
        sys.stderr.write(f"devstack: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
