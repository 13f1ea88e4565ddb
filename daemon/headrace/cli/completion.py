"""`headrace completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import argparse

import shtab


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints the script for a shell. For bash: headrace completion bash > /etc/bash_completion.d/headrace"
    )
    parser.add_argument("shell", choices=["bash", "zsh"], help="the shell")
    parser.set_defaults(run=_print)


def _print(given: argparse.Namespace) -> int:
    from headrace.cli.main import make_parser

    print(shtab.complete(make_parser((), every=True), shell=given.shell))
    return 0
