"""`headrace-spark init`: reads messages of topics, and writes a configuration for their tables."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from headrace_common.references import Expander
from headrace_documents.cli import CommandLine
from headrace_documents.errors import ConsumerError, SettingsError
from headrace_spark.settings import KafkaSettings, SparkSettings

MOST_MESSAGES = 10_000
MOST_SECONDS = 20.0


class NotWritten(ConsumerError):
    """The file already exists, or can't be written."""


def add(line: CommandLine) -> None:
    command = line.add("init", "read messages of topics and write a commented config for their tables", None)
    command.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="Kafka's brokers")
    command.add_argument("--topic", action="append", required=True, dest="topics", help="repeatable")
    command.add_argument(
        "--option",
        action="append",
        default=[],
        dest="options",
        metavar="KEY=VALUE",
        help="of Kafka's clients in Java, such as security.protocol=SSL; repeatable; ${VAR} and ${file:/path} work",
    )
    command.add_argument("--elasticsearch", default="http://127.0.0.1:9200", metavar="URL", help="default: %(default)s")
    command.add_argument("--output", type=Path, default=Path("config/spark.toml"), help="default: %(default)s")
    command.add_argument("--ivy", default=".cache/ivy", help="directory for downloaded jars; default: %(default)s")
    command.add_argument("--force", action="store_true", help="overwrite the file")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # The option may be wrong: nothing is read before this is known.
    if options.output.exists() and not options.force:
        raise NotWritten(f"{options.output} is there already: --force overwrites it, or choose another --output")
    given = dict(_pair(text) for text in options.options)
    kafka = _kafka(options, given)
    _check_url(options.elasticsearch)

    from headrace_spark.check.proposal import Target, families, propose
    from headrace_spark.check.sample import Sample, read_ends
    from headrace_spark.session.jvm import open_jvm
    from headrace_spark.source.kafka import check_reachable
    from headrace_spark.source.kafka_client import KafkaClient, KafkaError

    check_reachable(kafka)
    sample, waiting = Sample(), 0
    spark = SparkSettings.model_validate({"checkpoint": "-", "ivy": options.ivy, "scratch": ".cache/spark"})
    with open_jvm(spark) as jvm, KafkaClient(jvm, kafka) as client:
        for topic in kafka.topics:
            found = client.topic(topic)
            if found is None:
                raise KafkaError(f"Kafka has no topic {topic}: is its name right, and has the daemon published to it?")
            ranges = client.ranges(topic, found.partitions)
            waiting += sum(one.end - one.first for one in ranges.values())
            share = len(kafka.topics)
            for record in read_ends(client, topic, ranges, MOST_MESSAGES // share, MOST_SECONDS / share):
                sample.take(topic, record)
    target = Target(options.bootstrap_servers, kafka.topics, given, options.elasticsearch, options.ivy)
    text, variables = propose(target, sample, waiting)
    _write(options.output, text, force=options.force)
    count = len(sample.tables)
    print(f"{options.output}: {count} tables in {len(families(sample.tables.values()))} indexes")
    if variables:
        print(f"set before the start: {', '.join(variables)} (secrets are not written)")
    print(f"next: read the questions in it, then headrace-spark check --config {options.output}")
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        # The value may be a secret, so it is not reported.
        raise SettingsError(["--option: should be KEY=VALUE"])
    return name.strip().removeprefix("kafka."), value


def _kafka(options: argparse.Namespace, given: dict[str, str]) -> KafkaSettings:
    from headrace_common.files import validated

    problems: list[str] = []
    raw = {
        "bootstrap_servers": options.bootstrap_servers,
        "topics": options.topics,
        "dead_letter_topic": "-",
        "options": Expander(os.environ, lambda key, why: problems.append(f"--option {key}: {why}")).expand(given),
    }
    settings = validated(raw, KafkaSettings, lambda key, why: problems.append(f"--{key.replace('_', '-')}: {why}"))
    if settings is None or problems:
        raise SettingsError(problems)
    return settings


def _check_url(text: str) -> None:
    try:
        url = urlsplit(text)
        good = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        good = False
    if not good:
        raise SettingsError(['--elasticsearch: should be a URL such as "http://127.0.0.1:9200"'])


def _write(output: Path, text: str, *, force: bool) -> None:
    """Writes the whole file or none."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=output.parent, encoding="utf-8", delete=False) as made:
            made.write(text)
        Path(made.name).chmod(0o640)
        if force:
            Path(made.name).replace(output)
        else:
            try:
                os.link(made.name, output)
            finally:
                Path(made.name).unlink()
    except OSError as error:
        raise NotWritten(f"{output} can't be written: {error.strerror}") from None
