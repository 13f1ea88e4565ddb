"""The Spark consumer as users run it: from a change to a search that finds it, and its memory."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks import consumer_messages as messages
from devstack import Stack, java
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError
from headrace_documents.settings import ElasticsearchSettings

RATE = 500
"""Changes a second."""
_WARM = 20.0
_MEASURED = 40.0
"""Seconds."""
_MARKED = 0.25
"""Seconds between two measured changes."""
_POLL = 0.02
_MEMORY_EVERY = 5.0
_LIMIT = 120.0
_CONFIG = """
[kafka]
bootstrap_servers = "{kafka}"
topics = ["{topic}"]
dead_letter_topic = "{topic}-dead"

[elasticsearch]
hosts = ["{elastic}"]

[spark]
checkpoint = "{folder}/checkpoint"
scratch = "{folder}/spark"
ivy = "{ivy}"
trigger = "1 second"

[http]
listen = "127.0.0.1:{port}"
"""


def measure_process(stack: Stack, kafka: str, elastic: str) -> dict[str, float]:
    """Returns seconds from a change to a search that finds it, the median and the 99th of 100, and the peak megabytes
    of driver, JVM and workers."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    folder = stack.cache.root / "tmp" / topic
    folder.mkdir(parents=True)
    config = folder / "spark.toml"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ivy = stack.cache.root / "ivy"
    config.write_text(_CONFIG.format(kafka=kafka, elastic=elastic, topic=topic, folder=folder, ivy=ivy, port=port))
    environment = {**os.environ, **java.spark_environment(folder / "java")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace_spark.cli.main", "run", "--config", str(config)],
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        seconds, megabytes = asyncio.run(_measure(kafka, elastic, topic, process))
    except (TimeoutError, ChildProcessError):
        raise SystemExit(f"bench: the consumer does not get on:\n{(folder / 'log').read_text()[-3000:]}") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    ordered = sorted(seconds)
    return {
        "median_s": statistics.median(ordered),
        "p99_s": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        "rss_mb": megabytes,
    }


async def _measure(kafka: str, elastic: str, topic: str, process: subprocess.Popen[bytes]) -> tuple[list[float], float]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 2, 1), NewTopic(f"{topic}-dead", 1, 1)])
    finally:
        await admin.close()
    sent: dict[str, float] = {}
    found: dict[str, float] = {}
    most = measured = 0.0
    with Cluster(ElasticsearchSettings.model_validate({"hosts": [elastic]})) as cluster:
        sending = asyncio.create_task(_send(kafka, topic, sent))
        async with asyncio.timeout(_LIMIT + _WARM + _MEASURED):
            while not sending.done() or sent.keys() - found.keys():
                waiting = sorted(sent.keys() - found.keys())[:100]
                for key in await asyncio.to_thread(_search, cluster, waiting) if waiting else ():
                    found[key] = time.monotonic()
                if process.poll() is not None:
                    raise ChildProcessError
                if time.monotonic() >= measured + _MEMORY_EVERY:  # it takes the kernel a while
                    measured = time.monotonic()
                    most = max(most, await asyncio.to_thread(_memory, process.pid))
                await asyncio.sleep(_POLL)
        await sending
    end = max(sent.values())
    return [found[key] - sent[key] for key in sent if sent[key] >= end - _MEASURED], most


async def _send(kafka: str, topic: str, sent: dict[str, float]) -> None:
    """Sends some changes at a time, as a daemon does. Records the measured ones."""
    async with AIOKafkaProducer(bootstrap_servers=kafka, linger_ms=5) as producer:
        began, number, marked = time.monotonic(), 0, 0.0
        while (now := time.monotonic()) < began + _WARM + _MEASURED:
            while number < (now - began) * RATE:
                value = messages.service(number)
                await producer.send(topic, value, partition=number % 2)
                if now >= marked + _MARKED:
                    sent[str(number)], marked = now, now
                number += 1
            await asyncio.sleep(0.01)


def _search(cluster: Cluster, keys: list[str]) -> list[str]:
    body = {"query": {"ids": {"values": keys}}, "_source": False, "size": len(keys)}
    try:
        found = cluster.call("POST", (messages.INDEX, "_search"), body)
    except ApiError:  # the index does not exist yet
        return []
    return [hit["_id"] for hit in found["hits"]["hits"]]


def _memory(leader: int) -> float:
    """Returns the megabytes of the group's processes; shared memory counts once."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(path.name)) == leader or os.getsid(int(path.name)) == leader:
                lines = (path / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, ProcessLookupError):
            continue
    return total / 1024
