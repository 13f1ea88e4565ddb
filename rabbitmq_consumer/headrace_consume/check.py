"""`headrace-consume check`: checks whether everything that a run needs exists."""

from __future__ import annotations

import argparse
import asyncio

from headrace_consume.broker import Broker
from headrace_consume.duplicates import make_duplicates
from headrace_consume.service import quiet_clients
from headrace_consume.settings import Settings
from headrace_documents.cli import CommandLine, Findings
from headrace_documents.elastic import bulk as elastic
from headrace_documents.errors import ConsumerError


def add(line: CommandLine) -> None:
    command = line.add("check", "check RabbitMQ, Elasticsearch and the store of ids", _check)
    command.add_argument("--json", action="store_true", help="one JSON object with all findings")


def _check(settings: Settings, options: argparse.Namespace) -> int:
    return asyncio.run(_findings(settings)).print(as_json=options.json)


async def _findings(settings: Settings) -> Findings:
    quiet_clients()
    findings = Findings()
    for name, check in (
        ("RabbitMQ", _check_broker),
        ("Elasticsearch", _check_elasticsearch),
        ("duplicates", _check_ids),
    ):
        try:
            await check(findings, settings)
        except ConsumerError as error:
            findings.wrong(name, str(error))
    return findings


async def _check_broker(findings: Findings, settings: Settings) -> None:
    broker = await Broker.connect(settings.rabbitmq, "headrace-consume check")
    try:
        findings.ok("RabbitMQ", broker.address)
        main, dead = settings.rabbitmq, settings.dead_letters
        for name, declare in (
            (main.queue, main.declare),
            (settings.dead_queue, dead.declare),
            (settings.operator_queue, dead.declare),
        ):
            count = await broker.has_queue(name)
            if count is not None:
                findings.ok(f"queue {name}", f"has {count} messages")
            elif declare:
                findings.ok(f"queue {name}", "is not there; it is made at the start")
            else:
                findings.wrong(f"queue {name}", "is not there", "make it, or set declare = true")
    finally:
        await broker.close()


async def _check_elasticsearch(findings: Findings, settings: Settings) -> None:
    await asyncio.to_thread(elastic.check, settings.elasticsearch)
    findings.ok("Elasticsearch", ", ".join(settings.elasticsearch.hosts))


async def _check_ids(findings: Findings, settings: Settings) -> None:
    store = settings.duplicates.store
    if store == "none":
        return
    duplicates = make_duplicates(settings)
    await duplicates.seen(["check"])
    await duplicates.close()
    if duplicates.trouble:
        findings.wrong("duplicates", f"{store}: {duplicates.trouble}")
    else:
        findings.ok("duplicates", store)
