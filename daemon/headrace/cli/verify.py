"""`headrace verify`: compares tables with what consumers have, in the destination's own sink or in Elasticsearch."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.cli.common import add_config, coordinated, destination, print_json
from headrace.cli.terminal import progress
from headrace.cli.verify_output import ComparisonProgress, print_table, write_extra
from headrace.cli.wiring import ADAPTERS, Wiring, document_index, new_format
from headrace.errors import ConfigError
from headrace.model import TableSchema
from headrace.pipeline.preparation import prepare
from headrace.pipeline.projection import Projections
from headrace.ports.documents import IndexAccess
from headrace.ports.inspection import Inspection
from headrace.rules.templates import Template
from headrace.settings.destination import DestinationSettings, Settings
from headrace.snapshot.plan import matching
from headrace.verify.comparison import Limits, compare
from headrace.verify.documents import KEY, DocumentNames, document_forms
from headrace.verify.hashes import row_hash
from headrace.verify.result import TableFound
from headrace.verify.table import TableNow
from headrace.verify.views import IndexView, View
from headrace_common.arguments import duration, positive
from headrace_common.files import secrets_beside
from headrace_common.references import Expander

DESCRIPTION = (
    "Reads tables and what was published of them, and says which rows a consumer lacks, has otherwise, or has beyond "
    "them. Changes may go on meanwhile. Nothing is changed. Exit status 0: all is equal; 1: something differs, or "
    "could not be compared; 2: the configuration or the command is wrong. See docs/verify.md."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.add_argument("name", metavar="DEST", help="the destination")
    parser.add_argument(
        "tables", metavar="TABLE", nargs="?", default="", help="schema.table, or regexes as in [filter] include"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--topic", action="store_true", help="compare with the messages in the destination's sink (the default)"
    )
    what.add_argument(
        "--index",
        metavar="URL",
        type=_not_empty,
        help="compare with an index of Elasticsearch: https://host:9200, then the index's name "
        "(default: {database}.{table})",
    )
    parser.add_argument(
        "--index-id", metavar="TEMPLATE", default=KEY, help="how ids are made of {database}, {table} and {key}"
    )
    parser.add_argument("--index-user", metavar="NAME", default="", help="an account that may read the index")
    parser.add_argument(
        "--index-password",
        metavar="REFERENCE",
        default="",
        help="its password: '${NAME}', '${file:/path}' or '${credential:NAME}'",
    )
    parser.add_argument(
        "--index-api-key",
        metavar="REFERENCE",
        default="",
        help="instead of an account: a reference as for the password",
    )
    parser.add_argument("--index-ca", metavar="FILE", type=Path, help="CA certificates of the server")
    parser.add_argument(
        "--settle",
        type=duration,
        default=10.0,
        metavar="DURATION",
        help="a difference counts once the consumer got nothing of the row for so long (default: 10s)",
    )
    parser.add_argument(
        "--range-rows", type=positive, default=10_000, metavar="N", help="rows of a range (default: %(default)s)"
    )
    parser.add_argument(
        "--max-rows", type=positive, default=5_000_000, metavar="N", help="rows kept in memory (default: %(default)s)"
    )
    parser.add_argument("--extra", type=Path, metavar="FILE", help="where keys go that only the consumer has")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(call=command)


def _not_empty(text: str) -> str:
    """Refuses an empty text, for example from an unset variable, which would mean the topic."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: leave the option out to compare with the messages")
    return text


async def command(settings: Settings, given: argparse.Namespace) -> int:
    """Compares the tables one after another; returns the exit status."""
    chosen = destination(settings, given.name)
    if given.index and chosen.message.format != "canal":
        raise ConfigError([f"--index: consumers make documents of Canal's messages, and {chosen.name} has others"])
    if chosen.filter.left_out:
        left_out = ", ".join(sorted(chosen.filter.left_out))
        raise ConfigError([f"{chosen.name}: what is published is not the table: [filter] operations lacks {left_out}"])
    limits = Limits(given.max_rows, given.range_rows, given.settle)
    projections = Projections(chosen, new_format(chosen))
    found = []
    async with coordinated(settings) as shared:
        source = shared.inspection(chosen)
        await source.now_ms()
        unreadable, tables = await _tables(source, projections, given.tables, chosen, await _known(shared, chosen))
        for name, grant in unreadable.items():
            why = "the account may not read whole rows of it, so snapshots leave it out and nobody can compare it"
            found.append(TableFound(".".join(name), unreadable=f"{why} -> {grant}"))
            if not given.json:
                print_table(found[-1], given.extra)
        for schema in tables:
            table, view = await _sides(shared, source, projections, schema, given, chosen)
            try:
                with progress(f"{schema.name}, messages", counts=True) as work:
                    reported = ComparisonProgress(work, schema.name)
                    found.append(await compare(chosen.name, table, view, limits, source.now_ms, reported.report))
            finally:
                await view.close()
                await table.close()
            if not given.json:
                print_table(found[-1], given.extra)
    if given.extra is not None:
        write_extra(given.extra, found)
    if given.json:
        dicts = [one.to_dict() for one in found]
        print_json({"destination": chosen.name, "equal": all(one.equal for one in found), "tables": dicts})
    return 0 if all(one.equal for one in found) else 1


async def _known(shared: Wiring, chosen: DestinationSettings) -> Sequence[dict[str, Any]]:
    """Returns the stored schema history, if it exists: it names tables that the source does not show to our account."""
    store = shared.store(chosen)
    if await store.problems(chosen.name, must_exist=True):
        return ()
    await store.open()
    return await store.schema_entries(chosen.name)


async def _tables(
    source: Inspection,
    projections: Projections,
    wanted: str,
    chosen: DestinationSettings,
    entries: Sequence[dict[str, Any]],
) -> tuple[Mapping[tuple[str, str], str], list[TableSchema]]:
    """Returns the selected tables: by name those that the account may not read, each with the GRANT, and the others.
    Raises ConfigError if there is none."""
    try:
        wants = matching(wanted, projections.captures)
    except ValueError as error:
        raise ConfigError([f"TABLE: {error}"]) from error
    unreadable, found = await source.unreadable(wants, entries), await source.tables(wants)
    if not found and not unreadable:
        raise ConfigError([f"{chosen.name} captures no table {wanted}" if wanted else f"{chosen.name} has no table"])
    return unreadable, [found[name] for name in sorted(found)]


async def _sides(
    shared: Wiring,
    source: Inspection,
    projections: Projections,
    schema: TableSchema,
    given: argparse.Namespace,
    chosen: DestinationSettings,
) -> tuple[TableNow, View]:
    """Returns the two sides of the comparison; nothing of them is read yet. Raises ConfigError."""
    projection = projections.project(schema)
    published = projection.schema
    try:
        messages = shared.message_reader(chosen, published)
        if given.index:
            view: View = _index_view(published, given)
            forms = document_forms(published.columns)
        else:
            view = shared.topic_view(chosen, published, projection.route.topic)
            forms = _only_form
    except LookupError as error:
        raise ConfigError([f"{chosen.name}: {error.args[0]}"]) from error
    conditions, fmt = ADAPTERS.source_adapter().conditions, new_format(chosen)
    await prepare(fmt, published)
    return TableNow(await source.reader(), schema, projection, fmt, messages, conditions, forms), view


def _only_form(row: dict[str, object]) -> tuple[int, ...]:
    return (row_hash(row),)


# -- an index -----------------------------------------------------------------------------------------------------


def _index_view(schema: TableSchema, given: argparse.Namespace) -> View:
    """Returns the view of an index. Raises ConfigError."""
    url = urlsplit(given.index)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(["--index should begin with https:// or http:// and a host"])
    if url.username or url.password:
        raise ConfigError(["--index should have no account: there are --index-user and --index-password"])
    folder, _, index = unquote(url.path).rpartition("/")
    names = {"database": schema.schema, "table": schema.table}
    index = _filled(index or "{database}.{table}", names, "--index").lower()
    ids = _filled(given.index_id, {**names, "key": KEY}, "--index-id")
    if ids.count(KEY) != 1:
        raise ConfigError(["--index-id should have {key} once"])
    secrets = secrets_beside(given.config)
    access = IndexAccess(
        f"{url.scheme}://{url.netloc}{folder}",
        index,
        given.index_user,
        _secret(given.index_password, "--index-password", secrets),
        _secret(given.index_api_key, "--index-api-key", secrets),
        given.index_ca,
    )
    return IndexView(document_index(access), DocumentNames(ids))


def _filled(template: str, names: dict[str, str], option: str) -> str:
    try:
        return Template.parse(template, names).render(**names)
    except ValueError as error:
        raise ConfigError([f"{option}: {error}"]) from error


def _secret(reference: str, option: str, secrets: Path) -> str:
    """Returns the value of a reference. A secret itself is refused: others would see it in the list of processes."""
    if not reference:
        return ""
    if not re.fullmatch(r"\$\{[^}]*\}", reference):
        raise ConfigError([f"{option} should be a reference such as '${{NAME}}', and not the secret itself"])
    problems: list[str] = []
    expander = Expander(os.environ, lambda _, sentence: problems.append(f"{option}: {sentence}"), secrets)
    found = str(expander.expand(reference))
    if problems:
        raise ConfigError(problems)
    return found
