"""`headrace config`: the configuration as it is understood, its errors, and its schema."""

from __future__ import annotations

import argparse
from typing import Any

from headrace.cli.common import add_config, print_json
from headrace.cli.wiring import ADAPTERS
from headrace.settings.destination import DestinationSettings, MainSettings, Settings

DESCRIPTION = "Shows the configuration, checks it, or lists what it may contain; connects to nothing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    show = commands.add_parser("show", help="the whole configuration with all defaults, secrets hidden, as JSON")
    check = commands.add_parser("check", help="read all files; exit status 2, and a line each, for what is wrong")
    schema = commands.add_parser("schema", help="the JSON schema of headrace.toml and of a destination's file")
    for command, call in ((show, _show), (check, _check)):
        add_config(command)
        command.set_defaults(call=call)
    schema.set_defaults(run=_schema)


async def _show(settings: Settings, _: argparse.Namespace) -> int:
    print_json(settings.model_dump(mode="json"))
    return 0


async def _check(settings: Settings, _: argparse.Namespace) -> int:
    names = ", ".join(settings.destinations) or "none"
    print(f"{settings.file}: the configuration is right; destinations: {names}")
    return 0


def _schema(_: argparse.Namespace) -> int:
    """Sections that depend on one of their keys have all variants."""
    print_json({"headrace.toml": _main(), "destinations/NAME.toml": _destination()})
    return 0


def _main() -> dict[str, Any]:
    made = MainSettings.model_json_schema()
    made["properties"].pop("cluster")
    for name in ADAPTERS.names("cluster"):
        made["properties"][name] = ADAPTERS.section("cluster", name).model_json_schema()
    return made


def _destination() -> dict[str, Any]:
    made = DestinationSettings.model_json_schema()
    made["properties"].pop("name")
    made["required"] = [one for one in made["required"] if one in ("source", "sink")]
    for section in ("sink", "message", "parking"):
        kinds = [ADAPTERS.section(section, name).model_json_schema() for name in ADAPTERS.names(section)]
        made["properties"][section] = {"anyOf": kinds}
    return made
