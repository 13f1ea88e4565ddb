"""`headrace-spark check`: checks for real whether everything that a run needs exists, and reports it."""

from __future__ import annotations

import argparse
from typing import Any

from headrace_documents.cli import CommandLine, Findings
from headrace_documents.elastic import bulk as elastic
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ConsumerError, TransportError
from headrace_spark.check.contents import Wanted, check_messages
from headrace_spark.check.sample import Sample
from headrace_spark.settings import Settings
from headrace_spark.source import kafka


def add(line: CommandLine) -> None:
    command = line.add("check", "check all that a run needs, and say what is wrong and how to correct it", _check)
    command.description = (
        "Checks the machine, Java, Kafka with the last messages of its topics, and Elasticsearch with the indexes "
        "that those lead to. It prints a line for each check: ok, warning or wrong, and how to correct it. It changes "
        "nothing, but makes an index of its own and deletes it again, where rights can't be asked. Exit status 0: "
        "nothing is wrong, warnings included; 1: something is; 2: the config is."
    )
    command.add_argument("--json", action="store_true", help="one JSON object with all findings")


def _check(settings: Settings, options: argparse.Namespace) -> int:
    return full_check(settings).print(as_json=options.json)


def check(settings: Settings) -> str:
    """Makes the quick part of the check, which a run begins with: Java, Kafka and Elasticsearch; returns Java's
    version. Raises ConsumerError."""
    # Imported late: a wrong configuration is reported at once, not after Spark's Python half has been loaded.
    from headrace_spark.session.session import check_java

    java = check_java()
    kafka.check_reachable(settings.kafka)
    elastic.check(settings.elasticsearch, settings.index)
    return java


def full_check(settings: Settings) -> Findings:
    """Makes the whole check."""
    from headrace_spark.check.machine import check_machine

    findings = Findings()
    check_machine(findings, settings.spark)
    sample = _check_kafka(findings, settings)
    wanted = check_messages(findings, settings, sample)
    _check_elasticsearch(findings, settings, wanted)
    return findings


def _check_kafka(findings: Findings, settings: Settings) -> Sample:
    """Returns the content of the topics' last messages."""
    from headrace_spark.check.machine import check_checkpoint_url
    from headrace_spark.check.topics import check_topics
    from headrace_spark.errors import JavaError, SessionError
    from headrace_spark.session.jvm import open_jvm
    from headrace_spark.session.pyspark_internals import unknown_version
    from headrace_spark.session.session import check_java, kafka_package, local_jars
    from headrace_spark.source.kafka_client import KafkaClient

    not_seen = "; topics and messages could not be checked"
    try:
        findings.ok("Java", f"version {check_java()}")
        if unknown := unknown_version():
            findings.warn("Spark", unknown, "pip install 'headrace[spark]' takes one of these")
        there = bool(local_jars(settings.spark))
        with open_jvm(settings.spark) as jvm:
            _report_jars(findings, jvm, kafka_package(), "are there" if there else "were downloaded")
            check_checkpoint_url(findings, jvm, settings.spark.checkpoint_location())
            kafka.check_reachable(settings.kafka)
            with KafkaClient(jvm, settings.kafka) as client:
                return check_topics(findings, client, settings.kafka)
    except JavaError as error:
        findings.wrong("Java", f"{error}{not_seen}")
    except SessionError as error:
        findings.wrong("Spark", f"{error}{not_seen}")
    except ConsumerError as error:
        findings.wrong("Kafka", f"{error}{not_seen}", "is it running, and are [kafka] and its `options` right?")
    return Sample()


def _report_jars(findings: Findings, jvm: Any, package: str, how: str) -> None:
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader.loadClass("org.apache.spark.sql.kafka010.KafkaSourceProvider")
        version = loader.loadClass("org.apache.spark.sql.kafka010.KafkaSourceProvider").getProtectionDomain()
        jar = str(version.getCodeSource().getLocation().getPath()).rpartition("/")[2]
    except Exception:
        findings.wrong(
            "Spark", "its Kafka source is in none of the jars", f"name those of {package} in [spark] jars, or none"
        )
        return
    name, _, number = package.partition(":")[2].partition(":")
    if f"{name}-{number}" in jar:
        findings.ok("Spark", f"the jars of its Kafka source {how}: {jar}")
    else:
        findings.warn("Spark", f"{jar} is not for this Spark", f"take {package}")


def _check_elasticsearch(findings: Findings, settings: Settings, wanted: dict[str, Wanted]) -> None:
    from headrace_spark.check.indexes import Targets
    from headrace_spark.check.servers import check_rights, check_servers

    try:
        elastic.check(settings.elasticsearch)
        with Cluster(settings.elasticsearch) as cluster:
            nodes = check_servers(findings, cluster, settings.elasticsearch)
            check_rights(findings, cluster, settings.elasticsearch, wanted)
            targets = Targets(findings, cluster, settings.elasticsearch, nodes)
            for name, one in sorted(wanted.items()):
                targets.check(name, one)
    except (ConsumerError, TransportError) as error:
        findings.wrong("Elasticsearch", f"{error}; its indexes and the account's rights could not be checked")
