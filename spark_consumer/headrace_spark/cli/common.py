"""What the commands have in common."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

Commands = Any
"""What argparse's add_subparsers() returns."""


def add_command(commands: Commands, name: str, help_text: str) -> argparse.ArgumentParser:
    """A command that reads the config."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=help_text, description=help_text)
    command.add_argument("--config", type=Path, required=True, help="the TOML file, e.g. config/spark.toml")
    command.add_argument("--log-format", choices=["json", "console"], help="default: console at a terminal")
    return command
