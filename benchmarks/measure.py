"""One measurement in a separate process, on one core: prints its figures as a JSON object."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import snapshot_load, tables
from benchmarks.destinations import running
from headrace.cli.run import spare_collector

_LIMIT_SECONDS = 300.0
_WRITE_ROWS = 30


async def pipeline(job: dict[str, Any]) -> dict[str, float]:
    """Measures the daemon's own destination, from the binlog file's start until all rows are confirmed."""
    with TemporaryDirectory() as folder:
        reader = _slow_reader(job, folder) if job.get("sink_bytes_per_second") else None
        async with running(job) as run, asyncio.timeout(_LIMIT_SECONDS):
            status = run.status
            await run.until(lambda: status.published.rows > 0)  # the start is not measured
            begun, cpu, first = time.perf_counter(), time.process_time(), status.published.rows
            await run.until(lambda: status.published.rows >= job["rows"])
            elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
        if reader is not None:
            reader.wait(60)
    rows = status.published.rows - first
    return {"rows_per_second": rows / elapsed, "rows_per_cpu_second": rows / used}


def _slow_reader(job: dict[str, Any], folder: str) -> subprocess.Popen[bytes]:
    """Sends the messages into a pipe that a separate process reads slowly."""
    job["pipe"] = f"{folder}/pipe"
    os.mkfifo(job["pipe"])
    command = [sys.executable, "-m", "benchmarks.slow_reader", job["pipe"], str(job["sink_bytes_per_second"])]
    return subprocess.Popen(command)


async def rabbitmq_only(job: dict[str, Any]) -> dict[str, float]:
    """Measures ready messages of one row into a queue of RabbitMQ, each confirmed."""
    from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
    from headrace.adapters.rabbitmq.sink import RabbitMqSink
    from headrace.lease import Lease
    from headrace.model import MessageBatch

    host, port = job["rabbitmq"]
    names = {"exchange": job["topic"], "queue": job["topic"], "queue_type": job["queue_type"]}
    sink = RabbitMqSink(
        RabbitMqSinkSettings.model_validate(
            {"type": "rabbitmq", "hosts": f"{host}:{port}", "user": "guest", "password": "guest", "declare": True}
            | names
        ),
        Lease(),
    )
    await sink.start()
    value, count = b"x" * job["value_bytes"], 500
    headers = [("headrace-id", b"i" * 40), ("headrace-pos", b"1" * 19), ("headrace-position", b"p" * 24)]
    begun, cpu = time.perf_counter(), time.process_time()
    pending = []
    for _ in range(job["messages"] // count):
        batch = MessageBatch(job["topic"], 0, [value] * count, [headers] * count, len(value) * count)
        pending.append(await sink.publish(batch))
    await asyncio.gather(*pending)
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    await sink.close()
    sent = len(pending) * count
    return {"rows_per_second": sent / elapsed, "rows_per_cpu_second": sent / used}


async def rocketmq_only(job: dict[str, Any]) -> dict[str, float]:
    """Measures the same into a topic of RocketMQ, in turn for each of some message groups."""
    from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
    from headrace.adapters.rocketmq.sink import RocketMqSink
    from headrace.lease import Lease
    from headrace.model import MessageBatch

    made = {"type": "rocketmq", "hosts": job["rocketmq"]}
    sink = RocketMqSink(RocketMqSinkSettings.model_validate(made), Lease())
    await sink.start()
    value, count, groups = b"x" * job["value_bytes"], 25, job["groups"]
    headers = [("headrace-id", b"i" * 40), ("headrace-pos", b"1" * 19), ("headrace-position", b"p" * 24)]
    await (await sink.publish(MessageBatch(job["topic"], 0, [value], [headers])))  # the client requests the route first
    begun, cpu = time.perf_counter(), time.process_time()
    pending = []
    for number in range(job["messages"] // (1 if groups > 1 else 4) // count):
        batch = MessageBatch(job["topic"], number % groups, [value] * count, [headers] * count, len(value) * count)
        pending.append(await sink.publish(batch))
    await asyncio.gather(*pending)
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    await sink.close()
    sent = len(pending) * count
    return {"rows_per_second": sent / elapsed, "rows_per_cpu_second": sent / used}


def main() -> None:
    """Reads the job as JSON from the command line."""
    job = json.loads(sys.argv[1])
    job["other_cores"] = sorted(os.sched_getaffinity(0) - {0})
    os.sched_setaffinity(0, {0})
    spare_collector()
    kinds = {"pipeline": pipeline, "rabbitmq": rabbitmq_only, "rocketmq": rocketmq_only}
    kinds |= {"cursor": tables.cursor, "stream_during": snapshot_load.stream, "latency_during": snapshot_load.latency}
    alone = {"program": tables.program, "debezium": tables.debezium}
    kind = job["kind"]
    figures = alone[kind](job) if kind in alone else asyncio.run(kinds[kind](job))
    figures["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
