"""`headrace init`: a first configuration with comments, after reading the source."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from headrace.cli.common import CommandRefused, aligned
from headrace.cli.wiring import ADAPTERS
from headrace.errors import Refusal
from headrace.settings.destination import SourceSettings
from headrace.settings.load import DESTINATION_NAME

DESCRIPTION = (
    "Asks a source for its schemas, and writes headrace.toml and a destination's file with comments into a folder; "
    "nothing on the source is changed, and no file is replaced. What is not given is asked for on a terminal. The "
    "password is written to no file: the destination's file refers to a variable of the environment."
)

_MAIN = """\
# headrace's own file; docs/configuration.md has all keys. The destinations are in the folder next to it.

[daemon]
# The name of this daemon, in health, locks and derived server ids.
node = {node}

[http]
# The status page, /health, /metrics and commands.
listen = "127.0.0.1:9180"
"""
_DESTINATION = """\
# A destination: one MySQL source, and where its changes go. Its name is the file's.

[source]
host = {host}
port = {port}
user = {user}
# Taken from the environment, or from a file given by --env-file.
password = "${{{variable}}}"{tls}
# Where to begin when no position is stored: the rows that the tables have are published, and all changes from now on.
start = "latest"

[filter]
# Regular expressions of schema.table, with commas between.
include = {include}

[route]
# The topic, exchange key or file that messages are for.
topic = {name}

[sink]
{sink}
"""
_SINKS = {
    "kafka": 'type = "kafka"\nbootstrap_servers = {where}',
    "rabbitmq": """\
type = "rabbitmq"
hosts = {where}
user = "headrace"
password = "${{RABBITMQ_PASSWORD}}"
exchange = "headrace"
# Whether the exchange is made when it is missing.
declare = true""",
    "jsonl": 'type = "jsonl"\n# A file of lines; "-" is standard output.\npath = {where}',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    parser.add_argument("name", metavar="DEST", help="name of the destination, such as shop")
    parser.add_argument("--output", type=Path, default=Path("."), metavar="FOLDER", help="where to (default: here)")
    parser.add_argument("--host", help="host name or address of the source")
    parser.add_argument("--port", type=int, default=3306, help="its port (default: %(default)s)")
    parser.add_argument("--user", help="the account on it")
    parser.add_argument("--password-env", metavar="NAME", help="variable with its password (default: DEST_PASSWORD)")
    parser.add_argument(
        "--tls",
        choices=("verified", "required", "preferred", "disabled"),
        help="how the source is reached (default: verified, and preferred on this machine; see docs/configuration.md)",
    )
    parser.add_argument("--tls-ca", metavar="FILE", type=Path, help="CA certificates of the source")
    parser.add_argument("--schema", action="append", metavar="NAME", help="a schema to publish; may be given again")
    parser.add_argument(
        "--sink", metavar="KIND:WHERE", help="kafka:HOST:PORT, rabbitmq:HOST:PORT or jsonl:PATH (default: jsonl:-)"
    )
    parser.set_defaults(run=lambda given: asyncio.run(_init(given)))


async def _init(given: argparse.Namespace) -> int:
    if not DESTINATION_NAME.fullmatch(given.name):
        raise CommandRefused(
            f"'{given.name}' is no name of a destination",
            remedy="begin with a lower-case letter or a digit, and go on with those, dots, dashes and underscores",
        )
    files = [given.output / "headrace.toml", given.output / "destinations" / f"{given.name}.toml"]
    if files[1].exists():
        raise CommandRefused(f"{files[1]} is there already", remedy="give another name, or move it away")
    variable = given.password_env or f"{re.sub(r'[^A-Z0-9]', '_', given.name.upper())}_PASSWORD"
    tls = {name: value for name in ("tls", "tls_ca") if (value := getattr(given, name)) is not None}
    source = _source(
        given.host or _ask("Host of the source", "--host"),
        given.port,
        given.user or _ask("Account on it", "--user"),
        os.environ.get(variable) or _ask(f"Password ({variable} is not set)", variable, secret=True),
        tls,
    )
    schemas = await ADAPTERS.source_adapter().schemas(source)
    chosen = given.schema or _choose(schemas)
    if missing := [one for one in chosen if one not in schemas]:
        raise CommandRefused(
            f"the account sees no schema {', '.join(missing)}",
            remedy=f"it sees {', '.join(schemas) or 'none'}; make it, or grant the account SELECT on it",
        )
    sink = _sink(
        given.sink or _ask("Sink (kafka:HOST:PORT, rabbitmq:HOST:PORT, jsonl:PATH)", "--sink", default="jsonl:-")
    )
    texts = [
        _MAIN.format(node=_quoted(os.uname().nodename)),
        _DESTINATION.format(
            host=_quoted(source.host),
            port=source.port,
            user=_quoted(source.user),
            variable=variable,
            tls="".join(f"\n{key} = {_quoted(str(getattr(source, key)))}" for key in tls),
            include=_quoted(",".join(f"{re.escape(one)}\\..*" for one in chosen)),
            name=_quoted(given.name),
            sink=sink,
        ),
    ]
    _write(files, texts)
    print(f"next: set {variable}, then: headrace check --config {files[0]}")
    return 0


def _ask(question: str, option: str, *, default: str = "", secret: bool = False) -> str:
    """Asks a question and returns the answer. Raises CommandRefused if nobody can be asked."""
    if not sys.stdin.isatty():
        if default:
            return default
        raise CommandRefused(f"{option} is missing, and nobody can be asked: the input is no terminal")
    prompt = f"{question}{f' [{default}]' if default else ''}: "
    try:
        answer = getpass.getpass(prompt) if secret else input(prompt).strip()
    except EOFError:
        answer = ""
    if not (answer or default):
        raise CommandRefused(f"{option} is missing")
    return answer or default


def _choose(schemas: dict[str, int]) -> list[str]:
    if not schemas:
        raise CommandRefused(
            "the account sees no schemas", remedy="grant it SELECT on the schemas that are to be published"
        )
    if not sys.stdin.isatty():
        return list(schemas)
    print(aligned([("SCHEMA", "TABLES"), *((name, str(count)) for name, count in schemas.items())]))
    names = _ask("Schemas to publish, with commas between", "--schema", default=",".join(schemas))
    return [one.strip() for one in names.split(",") if one.strip()]


def _source(host: str, port: int, user: str, password: str, tls: dict[str, Any]) -> SourceSettings:
    try:
        return SourceSettings(host=host, port=port, user=user, password=SecretStr(password), **tls)
    except ValidationError as error:
        first = error.errors()[0]
        option = f"--{str(first['loc'][0]).replace('_', '-')}" if first["loc"] else "--tls-ca"
        raise CommandRefused(f"{option}: {first['msg']}") from None


def _sink(text: str) -> str:
    kind, _, where = text.partition(":")
    if kind not in _SINKS or not where:
        raise CommandRefused(
            f"'{text}' is no sink", remedy=f"give one of {', '.join(_SINKS)}, a colon, and where it is"
        )
    return _SINKS[kind].format(where=_quoted(where))


def _quoted(text: str) -> str:
    """Returns a TOML string."""
    if "'" not in text and text.isprintable():
        return f"'{text}'" if "\\" in text or '"' in text else f'"{text}"'
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if not escaped.isprintable():
        raise CommandRefused(f"{text!r} can't be written into a file")
    return f'"{escaped}"'


def _write(files: Sequence[Path], texts: Sequence[str]) -> None:
    """Writes the files. An existing headrace.toml is not changed."""
    try:
        for file, text in zip(files, texts, strict=True):
            if file.exists():
                print(f"{file} is there already and stays as it is")
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x") as out:
                out.write(text)
            print(f"{file} is written")
    except OSError as error:
        raise Refusal(f"{error.filename}: can't be written: {error.strerror}") from error
