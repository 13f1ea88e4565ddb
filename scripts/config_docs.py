"""Writes docs/configuration.md from the settings models, and the lists of docs/moving-properties.md from import's
tables; --check only says whether they are up to date. Run by scripts/gen-config-docs."""

from __future__ import annotations

import argparse
import enum
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.cli.wiring import ADAPTERS
from headrace.formats.debezium.settings import DebeziumSettings
from headrace.moving import canal_table, debezium_table
from headrace.moving.counterparts import said
from headrace.settings import daemon as main_file
from headrace.settings import destination as daemon
from headrace.settings import route
from headrace.settings.adapters import MessageSettings, ParkingSettings
from headrace.settings.archive import ArchiveSettings
from headrace.settings.values import StartLatest
from headrace_consume import settings as consume
from headrace_documents.indexes.settings import FieldSettings, IndexSettings, JoinSettings, SoftDelete
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark import settings as spark

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "configuration.md"
MOVING = ROOT / "docs" / "moving-properties.md"

HEAD = """\
# Configuration

<!-- Made by scripts/gen-config-docs from the settings models. Change those, then run it again. -->

These files configure headrace: `headrace.toml` for the daemon, one file for each destination in the
folder `destinations` next to it, and one file for each consumer. A destination has the name of its
file without `.toml`. The commented files in [config/](../config/headrace.toml) show every key.

These rules hold in all files:

- An unknown key, a missing key, a wrong type or a value out of range is an error. All problems of
  all files are printed together, each with its file and key, and the exit status is 2.
- In any string `${NAME}` is replaced by the environment variable, and `${file:/absolute/path}` by
  the text of the file without the line end. `${credential:NAME}` is replaced by the credential that
  systemd has loaded for the service, and where it has loaded none of that name, by the text of the
  file `secrets/NAME` next to `headrace.toml` or the consumer's file; see
  [secrets](running.md#secrets). `$${` stands for `${`. A reference that can't be resolved is an
  error.
- A *duration* is a string such as `"500ms"`, `"10s"`, `"2m"`, `"1h"`, `"7d"`, or a number of
  seconds. It is more than 0 and at most 7 days, unless its key has other limits.
- A *size* is a string such as `"64MiB"`, `"900KiB"`, `"5MB"`, or a number of bytes. It is at least
  1 KiB and at most 1024 GiB, unless its key has other limits.

Each key is listed with its type, its limits and its default.
"""

DAEMON = """\
Numbers may also be given as strings, so that they can come from the environment.
"""

FILTER = """\
A pattern is a regular expression (of the Python package `regex`). It has to match the whole of
`schema.table`, whatever the case. A comma separates two patterns, except within brackets of any
kind. Tables of the schema `headrace` are never published.
"""

SPARK = """\
One file, given with `headrace-spark run --config FILE`; see [spark.md](spark.md). Values have
TOML's own types. Relative paths are relative to the working directory.
"""

CONSUME = """\
One file, given with `headrace-consume run --config FILE`; see [consume.md](consume.md). Values have
TOML's own types. Relative paths are relative to the working directory. `[elasticsearch]` is that of
the Spark consumer, [above](#elasticsearch).
"""

WIDTH = 100
DURATIONS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"), (0.001, "ms"))
SIZES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (10**6, "MB"))
USUAL = {"duration": {"gt": 0, "le": 7 * 86400}, "size": {"ge": 1 << 10, "le": 1 << 40}}
"""The limits that the page's head names."""

Type = object


def type_text(kind: Type, field: FieldInfo) -> str:
    """A type as an operator would call it."""
    return type_name(kind, field.metadata)


def type_name(kind: Type, metadata: Iterable[object]) -> str:
    """The same, from what an annotation and its field say of the type."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return type_name(typing.get_args(kind)[0], [*metadata, *typing.get_args(kind)[1:]])
    if origin is typing.Literal:
        return " or ".join(f'`"{value}"`' for value in typing.get_args(kind))
    if origin is list:
        (kind,) = typing.get_args(kind)
        return "list of tables" if isinstance(kind, type) and issubclass(kind, BaseModel) else "list of strings"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "table"
    if origin is tuple:
        kind, *rest = typing.get_args(kind)
        if rest and rest[0] is not ...:
            return "list of two strings"
        if typing.get_origin(kind) is typing.Literal:
            return f"list of {type_name(kind, ())}"
        of_tables = isinstance(kind, type) and issubclass(kind, BaseModel)
        return "list of tables" if of_tables else "string or list of strings"
    if origin is dict:
        return "table"
    if origin in (typing.Union, types.UnionType):
        first = typing.get_args(kind)[0]
        return "string" if getattr(first, "__module__", "").startswith("headrace.") else type_name(first, metadata)
    validators = {getattr(getattr(item, "func", None), "__name__", "") for item in metadata}
    if "parse_duration" in validators:
        return "duration"
    if "parse_size" in validators:
        return "size"
    names = {
        Any: "any value",
        bool: "true or false",
        int: "integer",
        float: "number",
        str: "string",
        SecretStr: "string",
        Path: "path",
    }
    return names[kind]  # type: ignore[index]


def quantity(value: float, kind: str) -> str:
    """A number as one writes it for a key of this type: 10s, 64MiB, 1,000."""
    for unit, name in {"duration": DURATIONS, "size": SIZES}.get(kind, ()):
        count = value / unit
        if value and abs(count - round(count)) < 1e-9:
            return f"{round(count)}{name}"
    return f"{value:,}" if kind != "duration" else f"{value:g}"


def range_text(field: FieldInfo, kind: str) -> str:
    """The limits of a number, from the field's constraints: of several only the narrowest, and none of the usual."""
    found: dict[str, list[float]] = {}
    for item in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            if (limit := getattr(item, name, None)) is not None:
                found.setdefault(name, []).append(limit)
    limits = {name: max(all_of) if name in ("ge", "gt") else min(all_of) for name, all_of in found.items()}
    if "ge" in limits and "gt" in limits:
        del limits["ge" if limits["gt"] >= limits["ge"] else "gt"]
    usual = USUAL.get(kind, {})
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    return ", ".join(
        f"{words[name]} {quantity(limits[name], kind)}"
        for name in words
        if name in limits and limits[name] != usual.get(name)
    )


def default_text(field: FieldInfo) -> str:
    """The default as it would be written in TOML."""
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined or field.default_factory is not None:
        made = field.default_factory() if field.default_factory in (dict, list) else None  # type: ignore[call-arg]
        return "the host name" if made is None else f"`{made}`"
    value = field.default
    if value is None:
        extra = field.json_schema_extra
        return str(extra.get("default_is", "none")) if isinstance(extra, dict) else "none"
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if value == ():
        return "none"
    if isinstance(value, tuple):
        return f"`{json.dumps(value)}`"
    if isinstance(value, StartLatest):
        value = "latest"
    if isinstance(value, str | Path | enum.Enum):
        return f'`"{value}"`' if "\\" not in str(value) else f"`'{value}'`"
    kind = type_text(field.annotation, field)
    if kind in ("duration", "size") and value:
        return f'`"{quantity(value, kind)}"`'
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def wrapped(text: str, indent: str = "") -> str:
    """Lines of at most WIDTH characters; what is in backquotes is not broken."""
    kept = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.fill(kept, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")


def keys(model: type[BaseModel], skip: tuple[str, ...] = ()) -> str:
    """The keys of one section, an item each."""
    items = []
    for name, field in model.model_fields.items():
        if name in skip:
            continue
        kind = type_text(field.annotation, field)
        limits, default = range_text(field, kind), default_text(field)
        meaning = (field.description or "").strip()
        if re.match(r"[a-z]+( |$)", meaning):
            meaning = meaning[:1].upper() + meaning[1:]
        meaning += "" if not meaning or meaning.endswith(".") else "."
        about = [kind, limits, default if default == "required" else f"default {default}"]
        head = f"- `{name}` ({', '.join(filter(None, about))})"
        items.append(wrapped(f"{head}: {meaning}" if meaning else head, "  "))
    return "\n".join(items) + "\n"


def section(title: str, model: type[BaseModel], note: str = "", skip: tuple[str, ...] = ()) -> str:
    """Heading, the model's own sentence, and its keys."""
    doc = " ".join((model.__doc__ or "").split())
    _, found, rest = doc.partition(": ")
    sentence = rest if found and doc.startswith("[") else "" if doc.startswith("[") else doc
    sentence = sentence[:1].upper() + sentence[1:]
    parts = [f"### {title}\n", f"{wrapped(sentence)}\n" if sentence else "", note, keys(model, skip)]
    return "\n".join(part for part in parts if part)


def document() -> str:
    """The whole page."""
    parts = [HEAD, "## headrace.toml\n", DAEMON]
    parts += [
        section("[daemon]", main_file.DaemonSettings),
        *(section(f"[{name}]", ADAPTERS.section("cluster", name)) for name in ADAPTERS.names("cluster")),
        section("[state]", main_file.StateSettings),
        section("[http]", main_file.HttpSettings),
        section("[log]", main_file.LogSettings),
        "## destinations/NAME.toml\n",
        "A name begins with a lower-case letter or a digit and goes on with those, dots, dashes and\n"
        "underscores. No two destinations of a daemon may have the same `server_id`.\n",
        section("[source]", daemon.SourceSettings),
        section("[[source.standby]]", daemon.StandbySettings),
        section("[heartbeat]", daemon.HeartbeatSettings),
        section("[archive]", ArchiveSettings),
        section("[filter]", route.FilterSettings, FILTER, skip=("where", "mask")),
        section("[[filter.where]]", route.WhereSettings),
        section("[[filter.mask]]", route.MaskSettings),
        section("[message]", MessageSettings),
        *(
            section(
                f'[message] format = "{name}"',
                ADAPTERS.section("message", name),
                skip=(*MessageSettings.model_fields, "debezium"),
            )
            for name in ADAPTERS.names("message")
            if ADAPTERS.section("message", name).model_fields.keys() - MessageSettings.model_fields - {"debezium"}
        ),
        section("[message.debezium]", DebeziumSettings),
        section("[route]", route.RouteSettings),
        section("[queue]", daemon.QueueSettings),
        section("[parking]", ParkingSettings),
        *(
            section(
                f'[parking] store = "{name}"', ADAPTERS.section("parking", name), skip=(*ParkingSettings.model_fields,)
            )
            for name in ADAPTERS.names("parking")
            if ADAPTERS.section("parking", name) is not ParkingSettings
        ),
    ]
    parts += [section(f'[sink] type = "{name}"', ADAPTERS.section("sink", name)) for name in ADAPTERS.names("sink")]
    parts += [
        "## The Spark consumer's file\n",
        SPARK,
        section("[kafka]", spark.KafkaSettings),
        section("[elasticsearch]", ElasticsearchSettings),
        section("[spark]", spark.SparkSettings),
        section("[http]", spark.HttpSettings),
        section("[log]", spark.LogSettings),
        section("[source]", spark.SourceSettings),
        section("[[index]]", IndexSettings),
        section("[index.soft_delete]", SoftDelete),
        section("[index.fields.NAME]", FieldSettings),
        section("[[index.join]]", JoinSettings),
        "## The RabbitMQ consumer's file\n",
        CONSUME,
        section("[rabbitmq]", consume.RabbitMqSettings),
        section("[retry]", consume.RetrySettings),
        section("[dead_letters]", consume.DeadLetterSettings),
        section("[duplicates]", consume.DuplicatesSettings),
        section("[run]", consume.RunSettings),
        section("[http]", consume.ConsumeHttpSettings),
        section("[log]", consume.LogSettings),
    ]
    return "\n".join(parts)


def moving(page: str) -> str:
    """docs/moving-properties.md with the lists of properties as import knows them, each between two comments."""
    for name, table in (
        ("canal.properties", canal_table.COMMON),
        ("instance.properties", canal_table.INSTANCE),
        ("the usual options", debezium_table.REQUIRED),
        ("the other options", debezium_table.ADVANCED),
    ):
        begin, end = f"<!-- {name}: made by scripts/gen-config-docs -->\n", "<!-- end -->"
        before, _, rest = page.partition(begin)
        lines = [
            wrapped(f"- {', '.join(f'`{one}`' for one in names)}: {text}.", "  ") for text, names in said(table).items()
        ]
        page = f"{before}{begin}\n{chr(10).join(lines)}\n\n{end}{rest.partition(end)[2]}"
    return page


def main() -> int:
    """Writes the pages, or compares them."""
    parser = argparse.ArgumentParser(prog="scripts/gen-config-docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when it is out of date")
    options = parser.parse_args()
    pages = {TARGET: document(), MOVING: moving(MOVING.read_text())}
    old = [page.relative_to(ROOT) for page, text in pages.items() if not page.exists() or page.read_text() != text]
    if options.check:
        print(*(f"{page} is out of date: run scripts/gen-config-docs" for page in old), sep="\n")
        return 1 if old else 0
    for page, text in pages.items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
