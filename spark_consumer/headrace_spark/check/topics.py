"""Checks the topics: whether they exist, may be read, and what is in them; and whether dead letters may be written."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from headrace_documents.cli import Findings
from headrace_spark.check.sample import Sample
from headrace_spark.settings import KafkaSettings
from headrace_spark.source.kafka_client import KafkaClient, KafkaError, Range, Topic

_LAST = 20
"""Number of messages of each partition that are read."""
_SECONDS = 20.0
"""Maximum seconds for all partitions of all topics."""


def check_topics(findings: Findings, client: KafkaClient, settings: KafkaSettings) -> Sample:
    """Checks each topic; returns the content of its last messages. Raises KafkaError if Kafka does not answer at
    all."""
    sample = Sample()
    deadline = time.monotonic() + _SECONDS
    largest = 0
    for name in settings.topics:
        about = f"topic {name}"
        try:
            found = client.topic(name)
        except KafkaError as error:
            if "Authorization" not in str(error):
                raise
            findings.wrong(about, str(error), "give the account the rights Read and Describe on it")
            continue
        if found is None:
            findings.wrong(
                about, "is not there", "create it, let the daemon publish to it first, or correct [kafka] topics"
            )
            continue
        _read_last(findings, client, name, found, sample, deadline)
        largest = max(largest, _number(client, name, "max.message.bytes"))
    _check_dead_letters(findings, client, settings.dead_letter_topic, largest)
    return sample


def _read_last(
    findings: Findings, client: KafkaClient, name: str, found: Topic, sample: Sample, deadline: float
) -> None:
    about = f"topic {name}"
    before, newest, read = sample.messages, -1, 0
    try:
        ranges = client.ranges(name, found.partitions)
        for number, whole in ranges.items():
            if time.monotonic() >= deadline and read:
                break
            for record in client.read(name, number, Range(max(whole.first, whole.end - _LAST), whole.end)):
                newest = max(newest, record.timestamp)
                sample.take(name, record)
            read += 1
    except KafkaError as error:
        findings.wrong(about, f"can't be read: {error}", "give the account the right Read on it")
        return
    count = len(found.partitions)
    reported = f"{count} partition{'s' * (count > 1)}"
    if newest < 0 and sample.messages == before:
        findings.warn(about, f"{reported}, and no message", "has the daemon published to it yet?")
        return
    at = datetime.fromtimestamp(newest / 1000, UTC).isoformat(timespec="seconds")
    findings.ok(about, f"{reported}; the last {sample.messages - before} messages were read, the newest is of {at}")


def _number(client: KafkaClient, topic: str, key: str) -> int:
    """Returns a setting of a topic; 0 if the account may not see it."""
    try:
        return int(client.topic_config(topic, key))
    except (KafkaError, ValueError):
        return 0


def _check_dead_letters(findings: Findings, client: KafkaClient, name: str, largest: int) -> None:
    about = f"dead-letter topic {name}"
    try:
        found = client.topic(name)
        if found is None:
            client.create(name, only_try=True)
            findings.ok(about, "is made at the start; Kafka was asked whether it may be, and nothing was made")
            return
    except KafkaError as error:
        findings.wrong(about, str(error), "make it, or give the account the rights Create, Write and Describe on it")
        return
    if found.rights is None:
        findings.warn(about, "is there; whether it may be written can't be tried without leaving a message in it")
    elif missing := sorted({"WRITE", "DESCRIBE"} - found.rights):
        findings.wrong(about, f"the account has no right to {', '.join(missing)}", "give it the right on the topic")
    else:
        findings.ok(about, "may be written: Kafka was asked for the account's rights, and nothing was written")
        if fewer := sorted({"READ", "DELETE"} - found.rights):
            findings.warn(
                about,
                f"the account has no right to {', '.join(fewer)}",
                "headrace-spark dead-letters needs both; a run needs none of them",
            )
    _check_limits(findings, client, about, name, largest)


def _check_limits(findings: Findings, client: KafkaClient, about: str, name: str, largest: int) -> None:
    most = _number(client, name, "max.message.bytes")
    if 0 < most <= largest:
        findings.warn(
            about,
            f"takes messages of {most:,} bytes at most, and the topics have such of {largest:,}",
            f"set its max.message.bytes to {largest + (1 << 20)} or more: a letter that it refuses stops the query",
        )
    try:
        policy = client.topic_config(name, "cleanup.policy")
    except KafkaError:
        return
    if "compact" in policy:
        findings.wrong(
            about, f"cleanup.policy is {policy}: letters with the same key would replace each other", "set it to delete"
        )
