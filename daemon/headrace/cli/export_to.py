"""`headrace export`: the stored position of a destination as Canal's cursor or Debezium's offset, to go back."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import orjson

from headrace.canal_wire.cursor import cursor_node, destination_node, node_data
from headrace.cli.common import (
    CommandRefused,
    add_command,
    confirmed,
    coordinated,
    destination,
    held,
    open_store,
    require_answer,
)
from headrace.cli.wiring import foreign_nodes, send_record
from headrace.errors import Refusal
from headrace.model import Position
from headrace.moving.cursors import begin_of, debezium_key, meta_data, not_in_cursor, offsets_file
from headrace.moving.exporting import as_canal_cursor, as_debezium_offset
from headrace.settings.destination import DestinationSettings, Settings

DESCRIPTION = (
    "Writes the position up to which everything was confirmed for the system that is to go on from there. No daemon "
    "may run the destination meanwhile. No file is replaced."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add = partial(add_command, parser.add_subparsers(metavar="SYSTEM", required=True))
    canal = add("canal", "write the cursor of a Canal destination", _canal)
    add_names(canal, debezium := add("debezium", "write the offset of a connector", _debezium))
    where = canal.add_mutually_exclusive_group(required=True)
    where.add_argument("--zookeeper", metavar="HOSTS", help="into the node that Canal's cluster reads")
    where.add_argument("--meta", type=Path, metavar="FILE", help="as a meta.dat")
    where = debezium.add_mutually_exclusive_group(required=True)
    where.add_argument("--file", type=Path, metavar="FILE", help="as PATCH /connectors/NAME/offsets takes it")
    where.add_argument("--offsets", metavar="TOPIC", help="into Kafka Connect's topic; with --bootstrap")
    debezium.add_argument("--bootstrap", metavar="HOSTS", help="brokers of Kafka")
    for command in (canal, debezium):
        command.add_argument("--yes", action="store_true", help="do not ask before a cursor or offset is replaced")


def add_names(canal: argparse.ArgumentParser, debezium: argparse.ArgumentParser) -> None:
    """Adds the options for the destination's name in the other system."""
    canal.add_argument("--as", dest="destination", metavar="NAME", help="Canal's name of it (default: the same)")
    debezium.add_argument("--connector", metavar="NAME", help="the connector's name (default: the destination's)")
    debezium.add_argument("--prefix", metavar="NAME", help="its topic.prefix (default: [message.debezium] name)")


async def _position(settings: Settings, chosen: DestinationSettings) -> Position:
    """Returns the stored position, while no daemon runs the destination. Raises CommandRefused."""
    async with coordinated(settings) as shared:
        store = await open_store(shared, chosen)
        async with held(shared, chosen):
            stored = await store.load(chosen.name)
    if stored.position is None:
        raise CommandRefused(f"no position of {chosen.name} is stored")
    for note in not_in_cursor(stored.position):
        print(f"note: {note}")
    return stored.position


async def _canal(settings: Settings, given: argparse.Namespace) -> int:
    chosen, name = destination(settings, given.name), given.destination or given.name
    if given.zookeeper:
        require_answer(given.yes)
    position = await _position(settings, chosen)
    cursor = await as_canal_cursor(position, chosen.source)
    if given.meta:
        _write(given.meta, meta_data(name, cursor))
    else:
        node = cursor_node(name)
        async with foreign_nodes(given.zookeeper) as nodes:
            if await nodes.get(f"{destination_node(name)}/running") is not None:
                raise CommandRefused(f"Canal runs {name}, and would write its own cursor", remedy="stop it first")
            before = await nodes.get(node)
            print(f"{node}:\n  from  {(before or b'nothing').decode('utf-8', 'replace')}\n  to    {position}")
            if not await confirmed(given.yes):
                return 1
            await nodes.put(node, node_data(cursor))
    print(f"{name}: Canal goes on at {begin_of(position)}")
    return 0


def connector_of(chosen: DestinationSettings, given: argparse.Namespace) -> tuple[str, str]:
    """Returns the connector's name and its topic.prefix, as given or by default."""
    prefix = given.prefix or getattr(getattr(chosen.message, "debezium", None), "name", "") or chosen.name
    return given.connector or chosen.name, prefix


async def _debezium(settings: Settings, given: argparse.Namespace) -> int:
    chosen = destination(settings, given.name)
    connector, prefix = connector_of(chosen, given)
    if given.offsets:
        if not given.bootstrap:
            raise CommandRefused("--offsets needs --bootstrap")
        require_answer(given.yes)
    position = await _position(settings, chosen)
    offset = await as_debezium_offset(position, chosen.source)
    if given.file:
        _write(given.file, offsets_file(prefix, offset))
    else:
        print(f"{given.offsets}: the offset of {connector} becomes {begin_of(position)}")
        if not await confirmed(given.yes):
            return 1
        await send_record(given.bootstrap, given.offsets, debezium_key(connector, prefix), orjson.dumps(offset))
    print(f"{connector}: Debezium goes on at {begin_of(position)}")
    return 0


def _write(file: Path, data: bytes) -> None:
    try:
        with file.open("xb") as out:
            out.write(data)
    except FileExistsError:
        raise Refusal(f"{file} is there already and stays as it is", remedy="give another name") from None
    except OSError as error:
        raise Refusal(f"{file}: can't be written: {error.strerror}") from error
    print(f"{file} is written")
