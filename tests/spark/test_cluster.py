"""The Spark consumer on a cluster: executors and workers are killed, nobody is there to work, and nothing is lost."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from devstack import Stack
from devstack.servers.elasticsearch import ElasticsearchServer
from devstack.servers.spark import SparkCluster
from headrace_spark.session.session import kafka_package
from tests.canal_messages import history
from tests.joined_tables import Source, canal_message

from .conftest import JOINED, ROOT, Pipeline

pytestmark = [pytest.mark.server, pytest.mark.long]

PYTHON = Path(sysconfig.get_config_var("BINDIR"), "python{}.{}".format(*sys.version_info))
"""Has none of our packages: executors find them in the archive."""
CONF = """
[spark.conf]
"spark.pyspark.python" = "{python}"
"spark.archives" = "{archive}#headrace-packages"
"spark.executorEnv.PYTHONPATH" = "headrace-packages"
"spark.executorEnv.PYTHONNOUSERSITE" = "1"
"spark.executor.memory" = "512m"
"spark.executor.cores" = "1"
"spark.driver.host" = "127.0.0.1"
"""


@pytest.fixture(scope="module")
def workers(stack: Stack) -> SparkCluster:
    return stack.spark()


@pytest.fixture
def cluster(workers: SparkCluster) -> Iterator[SparkCluster]:
    """Both workers are there when a test begins."""
    for worker in workers.workers:
        if not worker.running:
            worker.start()
    return workers


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    subprocess.run([sys.executable, ROOT / "scripts/spark_archive.py", folder], check=True)
    return folder / "headrace-spark.tar.gz"


def run_there(pipeline: Pipeline, cluster: SparkCluster, archive: Path, more: str = "") -> None:
    """The consumer runs its tasks on the cluster from now on, and its checkpoint is a URL."""
    pipeline.change('checkpoint = "', f'master = "{cluster.url}"\ncheckpoint = "file://')
    text = pipeline.config.read_text() + CONF.format(python=PYTHON, archive=archive) + more
    pipeline.config.write_text(text)


async def make_topic(pipeline: Pipeline, partitions: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(pipeline.topic, partitions, 1)])
    finally:
        await admin.close()


def written(pipeline: Pipeline, index: str) -> int:
    """Documents that Elasticsearch has written or deleted so far."""
    found = pipeline.elastic.indices.stats(index=f"{index}*", metric="indexing")
    total = found["_all"]["total"].get("indexing", {})
    return int(total.get("index_total", 0)) + int(total.get("delete_total", 0))


def wait_inside_a_batch(pipeline: Pipeline, index: str) -> None:
    """Until a batch is done, and a task of the next one writes."""
    done = len(pipeline.events("batch done"))
    pipeline.wait_for(lambda: len(pipeline.events("batch done")) > done, 90)
    before = written(pipeline, index)
    pipeline.wait_for(lambda: written(pipeline, index) > before)


def causes(pipeline: Pipeline) -> dict[str, str]:
    """What the consumer waits for, by system."""
    return {one["system"]: one["cause"] for one in pipeline.health()["causes"]}


async def test_executors_and_workers_are_killed(
    pipeline: Pipeline, cluster: SparkCluster, archive: Path, elastic_server: ElasticsearchServer
) -> None:
    index = f"shop.{pipeline.topic}"
    messages, expected = history(pipeline.topic, 100_000)
    run_there(pipeline, cluster, archive)
    pipeline.change("max_offsets_per_trigger = 1000", "max_offsets_per_trigger = 10000")
    await make_topic(pipeline, 4)
    await pipeline.send(messages)
    one, other = cluster.workers
    process = pipeline.start()

    wait_inside_a_batch(pipeline, index)
    [executor] = one.executors()
    os.kill(executor, signal.SIGKILL)
    # The worker starts another one, and the tasks of the one before are done again.
    pipeline.wait_for(lambda: [pid for pid in one.executors() if pid != executor])
    wait_inside_a_batch(pipeline, index)
    one.kill()
    wait_inside_a_batch(pipeline, index)
    assert pipeline.health()["failures"] == 0, pipeline.text()

    # Tasks say over there that they wait, and the driver knows.
    elastic_server.freeze()
    try:
        pipeline.wait_for(lambda: pipeline.health()["state"] == "WAITING", 60)
        assert "does not answer: no answer in time" in causes(pipeline)["elasticsearch"]
    finally:
        elastic_server.thaw()
    pipeline.wait_for(lambda: not causes(pipeline), 60)

    wait_inside_a_batch(pipeline, index)
    other.kill()
    pipeline.wait_for(lambda: "gives no executor" in causes(pipeline).get("spark", ""), 60)
    assert pipeline.health()["state"] == "WAITING"
    one.start()
    pipeline.wait_for(lambda: pipeline.health()["lag"]["messages"] == 0, 120)
    pipeline.wait_for(lambda: not causes(pipeline), 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, pipeline.text()
    assert pipeline.documents() == expected
    await pipeline.dead_letters(0)
    assert "Traceback" not in pipeline.text()


async def test_joins_through_the_death_of_an_executor(pipeline: Pipeline, cluster: SparkCluster, archive: Path) -> None:
    source = Source(random.Random(11))
    while len(source.messages) < 6000:
        source.step()
    run_there(pipeline, cluster, archive, JOINED.format(index=pipeline.topic))
    await make_topic(pipeline, 4)
    await pipeline.send([canal_message(one) for one in source.messages])
    process = pipeline.start()
    for worker in cluster.workers:
        wait_inside_a_batch(pipeline, pipeline.topic)
        os.kill(worker.executors()[0], signal.SIGKILL)
    pipeline.wait_for(lambda: pipeline.health()["lag"]["messages"] == 0, 120)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, pipeline.text()
    assert {key: body for key, (_, body) in pipeline.documents(pipeline.topic).items()} == source.join()
    await pipeline.dead_letters(0)


def submit(pipeline: Pipeline, cluster: SparkCluster, archive: Path, *left_out: str) -> list[str]:
    """The words of the command in docs/spark-cluster.md, for this cluster and this configuration."""
    page = (ROOT / "docs/spark-cluster.md").read_text()
    [text] = re.findall(r"(spark-submit \\\n  --master spark://.*?)```", page, re.DOTALL)
    text = text.replace("spark://spark1:7077", cluster.url).replace("shop.toml", str(pipeline.config))
    text = text.replace(".cache/spark-archive", str(archive.parent))
    text = re.sub(r"--packages \S+", f"--packages {kafka_package()}", text)
    text = text.replace("\\\n", " ")  # a shell joins these lines
    for words in left_out:
        text = re.sub(words, "", text)
    _, *words = shlex.split(text)
    here = {
        "spark.jars.ivy": ROOT / ".cache/ivy",
        "spark.pyspark.python": PYTHON,
        "spark.executorEnv.PYTHONNOUSERSITE": "1",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    confs = [word for name, value in here.items() for word in ("--conf", f"{name}={value}")]
    return [str(Path(pyspark.__file__).parent / "bin/spark-submit"), *confs, *words]


def run_submitted(
    pipeline: Pipeline, cluster: SparkCluster, archive: Path, *left_out: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command, in the folder that it is written for, with a Python that has none of our packages."""
    folder = pipeline.config.parent / "submitted"
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python 3.11.2 has none
        tar.extractall(folder / "headrace-packages")
    environment = {**os.environ, **pipeline.environment, "PYTHONNOUSERSITE": "1", "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        [*submit(pipeline, cluster, archive, *left_out), "--available-now"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


async def test_spark_submit_as_the_documentation_says(pipeline: Pipeline, cluster: SparkCluster, archive: Path) -> None:
    messages, expected = history(pipeline.topic, 3000)
    pipeline.change('checkpoint = "', 'checkpoint = "file://')
    pipeline.change("[elasticsearch]", '[elasticsearch]\nuser = "elastic"\npassword = "not-for-a-log"')
    await make_topic(pipeline, 4)
    await pipeline.send(messages)
    done = run_submitted(pipeline, cluster, archive)
    assert done.returncode == 0, (done.args, done.stderr[-6000:])
    assert pipeline.documents() == expected
    logs = "".join(path.read_text(errors="replace") for one in cluster.workers for path in one.datadir.rglob("std*"))
    assert "headrace_documents.elastic.index_setup" in logs  # an index was made over there
    for text in (done.stdout, done.stderr, logs):
        assert "not-for-a-log" not in text


def test_spark_submit_without_the_kafka_source_says_so(
    pipeline: Pipeline, cluster: SparkCluster, archive: Path
) -> None:
    done = run_submitted(pipeline, cluster, archive, r"--packages \S+")
    assert done.returncode == 1, done.stderr[-6000:]
    said = done.stdout + done.stderr  # spark-submit prints what Python says on its own standard output
    assert f"spark-submit was not given Spark's Kafka source: add `--packages {kafka_package()}`" in said
    assert "Traceback" not in said
