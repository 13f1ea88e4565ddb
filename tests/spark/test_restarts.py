"""Restarts: from a lost checkpoint, from one of other topics, and with topics that were changed meanwhile."""

from __future__ import annotations

import json
import shutil

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from prometheus_client.parser import text_string_to_metric_families

from headrace_spark.cli.main import main
from tests.canal_messages import START, change, history, row

from .conftest import Pipeline

pytestmark = [pytest.mark.server, pytest.mark.long]


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
    text = pipeline.config.read_text()
    pipeline.config.write_text(text.replace(f'topics = ["{table}"]', 'topics = ["another"]'))
    await pipeline.send([])
    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
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
