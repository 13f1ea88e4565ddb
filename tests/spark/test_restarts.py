"""Restarts: from a lost checkpoint, from one of other topics, and with topics that were changed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from prometheus_client.parser import text_string_to_metric_families

from headrace_spark.cli.main import main
from tests.canal_messages import START, change, history, row

from .conftest import Pipeline

pytestmark = [pytest.mark.server, pytest.mark.long]


def jvm_of(pid: int) -> int:
    """The process of the consumer's JVM."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    [jvm] = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == "java"]
    return jvm


async def test_a_lost_checkpoint_converges(pipeline: Pipeline) -> None:
    messages, expected = history(pipeline.topic, 3000)
    await pipeline.send(messages)
    pipeline.drain()
    assert pipeline.documents() == expected
    checkpoint = pipeline.config.parent / "checkpoint"
    # What an unclean end may leave: an empty file of offsets.
    offsets = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    (checkpoint / "offsets" / str(int(offsets[-1].name) + 1)).write_text("v9\nstrange\n")
    assert pipeline.start("--available-now").wait(90) == 1
    assert "can't be used: its offsets are in the form 'v9'" in pipeline.text()
    assert "Move it away" in pipeline.text()
    assert "Exception" not in pipeline.text()
    shutil.rmtree(checkpoint)
    pipeline.drain()
    assert pipeline.documents() == expected
    await pipeline.dead_letters(0)


async def test_new_partitions_are_read_and_another_topic_is_refused(pipeline: Pipeline) -> None:
    table = pipeline.topic
    await pipeline.send([change(table, START, "INSERT", row(1))])
    pipeline.drain()
    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    await admin.start()
    try:
        await admin.create_partitions({table: NewPartitions(3)})
        pipeline.start()
        pipeline.wait_for(lambda: len(pipeline.health()["tables"]) == 0 and pipeline.health()["state"] == "RUNNING")
        for number in range(2, 30):
            await pipeline.send([change(table, START + 10 * number, "INSERT", row(number))], key=str(number).encode())
        pipeline.wait_for(lambda: pipeline.documents().keys() == {str(n) for n in range(1, 30)})
        wanted = {f'headrace_spark_lag_messages{{partition="{n}",topic="{table}"}} 0.0' for n in range(3)}
        pipeline.wait_for(lambda: wanted <= set(pipeline.metrics().splitlines()))
        pipeline.processes[-1].terminate()
        assert pipeline.processes[-1].wait(60) == 0
    finally:
        await admin.close()
    pipeline.change(f'topics = ["{table}"]', 'topics = ["another"]')
    pipeline.topic = "another"
    await pipeline.send([change("another", START, "INSERT", row(1))])
    assert pipeline.start("--available-now").wait(90) == 1
    assert f"is one of topic {table}, which [kafka] topics does not have" in pipeline.text()


async def test_a_topic_that_was_made_again_is_refused(pipeline: Pipeline) -> None:
    table = pipeline.topic
    await pipeline.send([change(table, START + n, "INSERT", row(n)) for n in range(1, 20)])
    pipeline.drain()
    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    await admin.start()
    await admin.delete_topics([table])
    await admin.close()
    await pipeline.send([change(table, START + 100 + n, "INSERT", row(n)) for n in range(50, 90)])
    process = pipeline.start()
    pipeline.wait_for(lambda: pipeline.health()["state"] == "FAILED")
    error = pipeline.health()["last_error"]
    assert f"topic {table} was deleted and made again" in error["reason"]
    assert "Move the checkpoint away" in error["remedy"]
    assert process.poll() is None
    process.terminate()
    assert process.wait(15) == 0
    shutil.rmtree(pipeline.config.parent / "checkpoint")
    pipeline.drain()
    assert pipeline.documents().keys() >= {str(n) for n in range(50, 90)}


async def test_metrics_after_a_known_load(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    table = pipeline.topic
    await pipeline.send([change(table, START + 10 * n, "INSERT", row(n)) for n in range(1, 301)])
    await pipeline.send([b"poison"])
    pipeline.start()
    pipeline.wait_for(lambda: pipeline.health()["messages"] == 301)
    found = {}
    for family in text_string_to_metric_families(pipeline.metrics()):
        for sample in family.samples:
            found[sample.name, *sorted(sample.labels.values())] = sample.value
    assert found["headrace_spark_messages_total",] == 301
    assert found["headrace_spark_rows_total",] == 300
    assert found["headrace_spark_dead_letters_total",] == 1
    assert found["headrace_spark_table_rows_total", f"shop.{table}"] == 300
    assert found["headrace_spark_documents_total", "indexed", f"shop.{table}"] == 300
    assert found["headrace_spark_commit_to_written_seconds_count",] == 300
    assert found["headrace_spark_bulk_seconds_count",] >= 1
    pipeline.wait_for(lambda: pipeline.health()["lag"]["messages"] == 0)
    assert main(["status", "--json", "--config", str(pipeline.config)]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 300
    pipeline.processes[-1].terminate()
    assert pipeline.processes[-1].wait(60) == 0


async def test_messages_that_kafka_deleted_unread_are_reported(pipeline: Pipeline) -> None:
    table = pipeline.topic
    await pipeline.send([change(table, START + 10, "INSERT", row(1))])
    pipeline.drain()
    await pipeline.send([change(table, START + 10 * n, "INSERT", row(n)) for n in range(2, 12)])
    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    await admin.start()
    await admin.delete_records({TopicPartition(table, 0): RecordsToDelete(before_offset=6)})
    await admin.close()
    assert pipeline.start("--available-now").wait(90) == 1
    reported = f"Kafka has deleted messages that were never read (topic, partition, offsets: {table} 0: 5)"
    assert reported in pipeline.text()
    assert "Set fail_on_data_loss = false" in pipeline.text()
    pipeline.change("[elasticsearch]", "fail_on_data_loss = false\n[elasticsearch]")
    pipeline.drain()
    assert pipeline.documents().keys() == {"1", "7", "8", "9", "10", "11"}
    assert len(pipeline.events("the query goes on without messages")) == 1


async def test_a_start_at_a_time_and_batches_bounded_by_bytes(pipeline: Pipeline) -> None:
    table = pipeline.topic
    await pipeline.send([change(table, START + 10, "INSERT", row(1))])
    await asyncio.sleep(0.01)  # Kafka's times are whole milliseconds
    now = datetime.now(UTC).isoformat()
    await pipeline.send([change(table, START + 10 * n, "INSERT", row(n, "x" * 10_000)) for n in range(2, 102)])
    pipeline.change("[elasticsearch]", f'starting_offsets = "{now}"\n[elasticsearch]')
    pipeline.change("[http]", 'max_bytes_per_trigger = "200kB"\n[http]')
    pipeline.drain()
    assert pipeline.documents().keys() == {str(n) for n in range(2, 102)}
    batches = [entry["messages"] for entry in pipeline.events("batch done")]
    assert sum(batches) == 100
    assert all(15 <= size <= 20 for size in batches[:-1]), batches


async def test_a_table_that_does_not_fit_is_never_passed_over(pipeline: Pipeline) -> None:
    table = pipeline.topic
    index = f'\n[[index]]\nname = "made"\ntables = [\'shop\\.{table}\']\nfields.title = {{ column = "%s" }}\n'
    text = pipeline.config.read_text()
    pipeline.config.write_text(text + index % "nothing")
    await pipeline.send([change(table, START, "INSERT", row(1))])
    process = pipeline.start()
    pipeline.wait_for(lambda: pipeline.health()["state"] == "FAILED")
    error = pipeline.health()["last_error"]
    assert error["reason"] == f"index made names column 'nothing', and shop.{table} has none of that name"
    assert "Correct [[index]]" in error["remedy"]
    pipeline.wait_for(lambda: pipeline.events("outage begins"))
    process.terminate()
    assert process.wait(20) == 0
    assert "Traceback" not in pipeline.text()
    pipeline.config.write_text(text + index % "name")
    pipeline.drain()
    assert pipeline.documents("made").keys() == {"1"}
    await pipeline.dead_letters(0)


async def test_systemd_hears_of_start_life_and_end(pipeline: Pipeline, tmp_path: Path) -> None:
    await pipeline.send([change(pipeline.topic, START, "INSERT", row(1))])
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(60)
        pipeline.environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000000"}
        process = pipeline.start()
        while b"READY=1" not in heard:
            heard.append(receiver.recv(1000))
        assert pipeline.health()["state"] in ("RUNNING", "CATCHING_UP")
        while not heard[-1].startswith(b"STATUS=RUNNING, 0 messages wait"):
            heard.append(receiver.recv(1000))
        process.terminate()
        while heard[-1] != b"STOPPING=1":
            heard.append(receiver.recv(1000))
        assert process.wait(60) == 0
    assert b"WATCHDOG=1" in heard
    assert heard[0] == b"WATCHDOG=1"
    assert b"STATUS=STARTING" in heard


async def test_a_jvm_that_died_ends_the_process(pipeline: Pipeline) -> None:
    await pipeline.send([change(pipeline.topic, START, "INSERT", row(1))])
    process = pipeline.start()
    pipeline.wait_for(lambda: pipeline.events("batch done"))
    os.kill(jvm_of(process.pid), signal.SIGKILL)
    assert process.wait(60) == 1
    assert "Spark's JVM has ended. Start the consumer again" in pipeline.text()
    assert "Traceback" not in pipeline.text()


async def test_a_query_that_fails_again_and_again_writes_no_dead_letter_twice(pipeline: Pipeline) -> None:
    table = pipeline.topic
    index = f'\n[[index]]\nname = "again"\ntables = [\'shop\\.{table}\']\nfields.title = {{ column = "%s" }}\n'
    text = pipeline.config.read_text()
    pipeline.config.write_text(text + index % "nothing")
    await pipeline.send([b"not json", *(change(table, START + n, "INSERT", row(n)) for n in range(400))])
    process = pipeline.start()
    # Each failure was four tries of a task.
    pipeline.wait_for(lambda: pipeline.health()["state"] == "FAILED")
    process.terminate()
    assert process.wait(20) == 0
    pipeline.config.write_text(text + index % "name")
    pipeline.drain()
    assert len(pipeline.documents("again")) == 400
    await pipeline.dead_letters(1)


async def test_another_number_of_messages_a_batch_writes_no_dead_letter_twice(pipeline: Pipeline) -> None:
    pipeline.change("[http]", 'max_bytes_per_trigger = "20kB"\n[http]')
    # The sample has small messages; those of the second batch are larger, so that the query begins again.
    await pipeline.send([*(b"no %d" % n for n in range(1000)), *(b"no %d" % n + b"x" * 300 for n in range(2200))])
    pipeline.drain()
    sizes = [entry["messages"] for entry in pipeline.events("batch done")]
    assert sizes[0] > 4 * sizes[-2], sizes
    await pipeline.dead_letters(3200)


def test_a_value_that_spark_does_not_take_is_named_by_its_key(pipeline: Pipeline) -> None:
    text = pipeline.config.read_text()
    pipeline.config.write_text(text + '[spark.conf]\n"spark.sql.shuffle.partitions" = "abc"\n')
    assert pipeline.start().wait(90) == 2
    assert "[spark.conf] spark.sql.shuffle.partitions: Spark does not take 'abc'" in pipeline.text()
    assert "Traceback" not in pipeline.text()
    assert "please report" not in pipeline.text()


async def test_an_index_with_a_misspelt_analyzer_stops_with_one_line_and_makes_no_dead_letter(
    pipeline: Pipeline,
) -> None:
    table = pipeline.topic
    text = pipeline.config.read_text()
    index = f"\n[[index]]\nname = \"misspelt\"\ntables = ['shop\\.{table}']\n"
    pipeline.config.write_text(f'{text}{index}analyzer = "smartcnn"\n')
    await pipeline.send([change(table, START + n, "INSERT", row(n)) for n in range(500)])
    assert pipeline.start("--available-now").wait(90) == 1
    [reported] = [line for line in pipeline.text().splitlines() if "smartcnn" in line and not line.startswith("{")]
    assert reported.startswith("index misspelt can't be made as [[index]] misspelt has it: 400")
    assert not pipeline.events("dead letter")
    assert "Traceback" not in pipeline.text()
    pipeline.config.write_text(text + index)
    pipeline.drain()
    assert len(pipeline.documents("misspelt")) == 500
    await pipeline.dead_letters(0)
