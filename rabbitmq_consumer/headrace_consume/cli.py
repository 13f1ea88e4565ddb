"""The command `headrace-consume`: reads the config, runs the consumer, checks, and shows the dead letters."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import structlog

from headrace_documents.errors import ConsumerError
from headrace_documents.extras import exit_without

try:
    from headrace_consume import dead_letters
    from headrace_consume.broker import Broker
    from headrace_consume.duplicates import DuplicatesError, make_duplicates
    from headrace_consume.service import Service, quiet_clients
    from headrace_consume.settings import Settings, load_settings
    from headrace_documents import logs
    from headrace_documents.elastic import bulk as elastic
except ModuleNotFoundError as missing:
    exit_without(missing, "headrace-consume", "consume")

log = structlog.get_logger("headrace_consume")


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Exit codes: 0 stopped or done, 1 failed, 2 the config is not fit, 130 after Ctrl-C."""
    options = make_parser().parse_args(arguments)
    logs.configure(options.log_format)
    try:
        settings = load_settings(options.config)
        logs.configure(options.log_format or settings.log.format)
        if options.command == "run":
            asyncio.run(Service(settings).run())
            return 0
        if options.command == "check":
            return asyncio.run(_check(settings))
        return asyncio.run(dead_letters.command(settings, options))
    except ConsumerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # A fault of ours: the whole story goes into the log, as one event. An error's repr() may hold a password.
        log.critical("headrace-consume has a fault; please report it", reason=type(error).__name__, exc_info=True)
        return 1


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="headrace-consume", description="Takes headrace's messages from a queue of RabbitMQ into Elasticsearch."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="consume until SIGTERM")
    check = commands.add_parser("check", help="check the config, RabbitMQ, Elasticsearch and the store of ids")
    letters = commands.add_parser("dead-letters", help="the messages that could not be applied")
    for command in (run, check, *dead_letters.add_commands(letters)):
        command.add_argument("--config", type=Path, required=True, help="the TOML file, e.g. config/consume.toml")
        command.add_argument("--log-format", choices=["json", "console"], help="default: as [log] format says")
    return parser


async def _check(settings: Settings) -> int:
    """A line for each thing looked at; 0 when all is there."""
    quiet_clients()
    good = [await _check_broker(settings), await _check_elastic(settings), await _check_ids(settings)]
    return 0 if all(good) else 1


async def _check_broker(settings: Settings) -> bool:
    try:
        broker = await Broker.connect(settings.rabbitmq, "headrace-consume check")
    except ConsumerError as error:
        print(f"MISSING  {error}")
        return False
    good = True
    try:
        print(f"ok       RabbitMQ {broker.address}")
        main, dead = settings.rabbitmq, settings.dead_letters
        for name, declare in (
            (main.queue, main.declare),
            (settings.dead_queue, dead.declare),
            (settings.operator_queue, dead.declare),
        ):
            count = await broker.has_queue(name)
            if count is not None:
                print(f"ok       queue {name}: {count} messages")
            elif declare:
                print(f"note     queue {name} is not there; it is made at the start")
            else:
                print(f"MISSING  queue {name}: make it, or set declare = true")
                good = False
    except ConsumerError as error:
        print(f"WRONG    {error}")
        good = False
    finally:
        await broker.close()
    return good


async def _check_elastic(settings: Settings) -> bool:
    try:
        await asyncio.to_thread(elastic.check, settings.elasticsearch)
    except ConsumerError as error:
        print(f"MISSING  {error}")
        return False
    print(f"ok       Elasticsearch {', '.join(settings.elasticsearch.hosts)}")
    return True


async def _check_ids(settings: Settings) -> bool:
    store = settings.duplicates.store
    if store == "none":
        return True
    try:
        duplicates = make_duplicates(settings)
    except DuplicatesError as error:
        print(f"MISSING  {error}")
        return False
    await duplicates.seen(["check"])
    await duplicates.close()
    if duplicates.trouble:
        print(f"MISSING  message ids ({store}): {duplicates.trouble}")
        return False
    print(f"ok       message ids: {store}")
    return True


if __name__ == "__main__":
    sys.exit(main())
