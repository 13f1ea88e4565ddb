"""`headrace-spark dead-letters`: opens the topic of dead letters for the commands that both consumers have."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace_documents.cli import CommandLine
from headrace_documents.dead_letters import add_dead_letters
from headrace_spark.settings import Settings

if TYPE_CHECKING:
    from headrace_spark.dead_letters.topic import DeadLetterTopic


def add(line: CommandLine) -> None:
    add_dead_letters(line, _opened)


@contextlib.contextmanager
def _opened(settings: Settings, _: argparse.Namespace) -> Iterator[DeadLetterTopic]:
    # Imported late: a wrong configuration is reported at once, not after Spark's Python half has been loaded.
    from headrace_spark.dead_letters.topic import DeadLetterTopic
    from headrace_spark.session.jvm import open_jvm
    from headrace_spark.source.kafka import check_reachable
    from headrace_spark.source.kafka_client import KafkaClient

    check_reachable(settings.kafka)
    with open_jvm(settings.spark) as jvm, KafkaClient(jvm, settings.kafka) as client:
        yield DeadLetterTopic(client, settings.kafka.dead_letter_topic, lambda text: print(text, file=sys.stderr))
