"""`headrace-spark check`: is everything there that a run needs?"""

from __future__ import annotations

import argparse

from headrace_documents import elastic
from headrace_spark import kafka
from headrace_spark.cli.common import Commands, add_command
from headrace_spark.settings import Settings, load_settings


def add(commands: Commands) -> None:
    command = add_command(commands, "check", "check the config, Java, Kafka and Elasticsearch, and end")
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    check(load_settings(options.config))
    print(f"{options.config}: good; Java, Kafka and Elasticsearch are there")
    return 0


def check(settings: Settings) -> str:
    """Looks at Java, Kafka and Elasticsearch; Java's version. Raises ConsumerError."""
    # Imported late: a wrong config is told at once, not after Spark's Python half has been loaded.
    from headrace_spark.session import check_java

    java = check_java()
    kafka.check_reachable(settings.kafka)
    elastic.check(settings.elasticsearch, settings.index)
    return java
