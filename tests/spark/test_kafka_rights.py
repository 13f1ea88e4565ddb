"""The commands with an account of Kafka that has few rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

import devstack
from devstack.servers.kafka_users import add_user
from headrace_spark.transform.worker import Record, dead_letter
from tests.canal_messages import START, change, row

from .conftest import Done, Pipeline
from .test_check import bad, check

pytestmark = [pytest.mark.server, pytest.mark.long]

PASSWORD = "s3cret-of-relay"
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="relay" password="{PASSWORD}";'


class Guarded:
    """A broker that asks who one is, and what one may do; without a password one may do everything."""

    def __init__(self, kafka: Any, jvm: Any) -> None:
        self.plain = str(kafka.bootstrap_servers)
        self.address = f"127.0.0.1:{kafka.brokers[0].listeners['SASL'][1]}"
        properties = jvm.java.util.Properties()
        properties.setProperty("bootstrap.servers", self.plain)
        self._jvm, self._admin = jvm, jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)

    def allow(self, topic: str, *operations: str) -> None:
        """Gives the account rights on a topic."""
        common = self._jvm.org.apache.kafka.common
        pattern = common.resource.ResourcePattern(
            common.resource.ResourceType.TOPIC, topic, common.resource.PatternType.LITERAL
        )
        allow = common.acl.AclPermissionType.ALLOW
        entries = [
            common.acl.AccessControlEntry("User:relay", "*", getattr(common.acl.AclOperation, name), allow)
            for name in operations
        ]
        self._admin.createAcls([common.acl.AclBinding(pattern, one) for one in entries]).all().get()

    def make(self, *topics: str) -> None:
        optional = self._jvm.java.util.Optional
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic
        self._admin.createTopics([new(name, optional.of(1), optional.empty()) for name in topics]).all().get()

    def close(self) -> None:
        self._admin.close()


@pytest.fixture
def guarded(stack: devstack.Stack, spark_jvm: Any) -> Iterator[Guarded]:
    scram = "listener.name.sasl.scram-sha-512.sasl.jaas.config"
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        scram: "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    kafka = stack.kafka(name="guarded", settings=settings, listeners={"SASL": lambda _, port: port})
    try:
        add_user(kafka.brokers[0].host, kafka.brokers[0].port, "relay", PASSWORD, "SCRAM-SHA-512")
        made = Guarded(kafka, spark_jvm)
        yield made
        made.close()
    finally:
        kafka.kill()


async def test_rights_that_are_missing_are_named(
    guarded: Guarded, pipeline: Pipeline, command: Callable[..., Done], tmp_path: Path
) -> None:
    topic, dead = pipeline.topic, f"{pipeline.topic}.dead"
    options = (
        f'"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanism" = "SCRAM-SHA-512"\n"sasl.jaas.config" = \'{JAAS}\'\n'
    )
    text = pipeline.config.read_text().replace(pipeline.bootstrap, guarded.address)
    pipeline.config.write_text(f"{text}\n[kafka.options]\n{options}")
    words = ["--config", pipeline.config]
    guarded.make(topic, dead)
    message = change("t", START, "INSERT", row(1))
    letter = dead_letter(Record(b"k", message, topic, 0, 0, None), "why", 1)
    async with AIOKafkaProducer(bootstrap_servers=guarded.plain, acks="all") as producer:
        await producer.send_and_wait(topic, message)
        await producer.send_and_wait(dead, letter.value, letter.key, headers=letter.headers)

    wrong = bad(check(pipeline, command, 1))
    assert "TopicAuthorizationException" in wrong[f"topic {topic}"][0][1]
    assert "TopicAuthorizationException" in wrong[f"dead-letter topic {dead}"][0][1]
    guarded.allow(topic, "DESCRIBE")
    guarded.allow(dead, "DESCRIBE")
    wrong = bad(check(pipeline, command, 1))
    assert wrong[f"topic {topic}"][0][1].startswith("can't be read: ")
    assert wrong[f"dead-letter topic {dead}"] == [("wrong", "the account has no right to WRITE")]

    # What a run needs, and no more.
    guarded.allow(topic, "READ")
    guarded.allow(dead, "WRITE")
    wrong = bad(check(pipeline, command, 0))
    assert wrong[f"dead-letter topic {dead}"] == [("warning", "the account has no right to DELETE, READ")]
    assert f"topic {topic}" not in wrong
    done = command("dead-letters", "list", *words)
    assert done.code == 1
    assert "TopicAuthorizationException" in done.err
    pipeline.drain()
    assert pipeline.documents("shop.t").keys() == {"1"}

    # Without the right to write a letter stays open; without that to delete it is closed, and stays in the topic.
    guarded.allow(dead, "READ")
    done = command("dead-letters", "retry", *words, "--all")
    assert done.code == 1
    assert "stays: TopicAuthorizationException" in done.err
    guarded.allow(topic, "WRITE")
    done = command("dead-letters", "retry", *words, "--all")
    assert (done.code, done.out) == (0, "1 sent again\n")
    assert done.err.count("Give the account the right Delete") == 1
    assert "0 dead letters" in command("dead-letters", "list", *words).out

    output = tmp_path / "made.toml"
    given = [
        f"--option={line.partition(' = ')[0].strip(chr(34))}={line.partition(' = ')[2][1:-1]}"
        for line in options.splitlines()
    ]
    done = command("init", "--bootstrap-servers", guarded.address, "--topic", topic, "--output", output, *given)
    assert done.code == 0, done.err
    assert "set before the start: KAFKA_SASL_JAAS_CONFIG" in done.out
    assert PASSWORD not in output.read_text() + done.out + done.err
    assert '"${KAFKA_SASL_JAAS_CONFIG}"' in output.read_text()
    # A wrong password is one sentence, in which it does not stand.
    pipeline.config.write_text(pipeline.config.read_text().replace(PASSWORD, "hush-hush"))
    found = check(pipeline, command, 1)
    assert bad(found).keys() == {"Kafka"}
    assert "Authentication" in found["Kafka"][0][1]
    assert "hush" not in str(found)
