"""One measurement in a process of its own, on one core: prints its figures as a JSON object."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks import beside, tables
from benchmarks.destinations import running, settings_of
from headrace.cli.run import spare_collector
from headrace.cli.wiring import Wiring
from headrace.destination.destination import Destination
from headrace.destination.status import DestinationStatus
from headrace.model import Position
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.cutter import EventCutter
from headrace.mysql.events.table_map import TableMap
from headrace.mysql.values.column_types import DEFAULTS, JSON
from headrace.mysql.values.jsonb import json_text
from headrace.mysql.values.rowcode import RowDecoder, make_decoder
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.daemon import StateSettings
from headrace.settings.destination import DestinationSettings, Settings
from headrace.supervisor.supervisor import Supervisor

_LIMIT_SECONDS = 300.0
_WRITE_ROWS = 30


async def _make_topic(job: dict[str, Any]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=job["kafka"])
    await admin.start()
    try:
        await admin.create_topics([NewTopic(job["topic"], job["partitions"], 1)])
    finally:
        await admin.close()


async def pipeline(job: dict[str, Any]) -> dict[str, float]:
    """The daemon's own actor, from the binlog file's start until all rows are confirmed."""
    if job.get("partitions"):
        await _make_topic(job)
    with TemporaryDirectory() as folder:
        reader = _slow_reader(job, folder) if job.get("sink_bytes_per_second") else None
        async with running(job) as run, asyncio.timeout(_LIMIT_SECONDS):
            status = run.status
            await run.until(lambda: status.rows > 0)  # what the start costs is not what is measured
            begun, cpu, first = time.perf_counter(), time.process_time(), status.rows
            await run.until(lambda: status.rows >= job["rows"])
            elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
        if reader is not None:
            reader.wait(60)
    rows = status.rows - first
    return {"rows_per_second": rows / elapsed, "rows_per_cpu_second": rows / used}


def _slow_reader(job: dict[str, Any], folder: str) -> subprocess.Popen[bytes]:
    """Lets the messages go into a pipe that a process of its own reads slowly."""
    job["pipe"] = f"{folder}/pipe"
    os.mkfifo(job["pipe"])
    command = [sys.executable, "-m", "benchmarks.slow_reader", job["pipe"], str(job["sink_bytes_per_second"])]
    return subprocess.Popen(command)


async def several(job: dict[str, Any]) -> dict[str, float]:
    """Many destinations under one supervisor, all over the same table, some of which may never come to life."""
    names = [f"live{number}" for number in range(job["live"])]
    made = {name: settings_of({**job, "destination": name}) for name in names}
    ways: tuple[dict[str, Any], ...] = ({"password": "wrong"}, {"port": 1}, {"start": "no-such-bin.000001:4"})
    for number, way in enumerate(ways[: job["dead"]]):
        name = f"dead{number}"
        made[name] = settings_of({**job, "destination": name, "source": {**job["source"], **way}})
    for number, (name, one) in enumerate(made.items()):
        source = one.source.model_copy(update={"server_id": os.getpid() + 1000 + number})
        made[name] = one.model_copy(update={"source": source})
    with TemporaryDirectory() as folder:
        settings = Settings(state=StateSettings(path=Path(folder) / "state.db"), destinations=made)
        wiring = Wiring(settings)
        await wiring.open()

        def actor(one: DestinationSettings, status: DestinationStatus) -> Destination:
            return Destination(one, settings.daemon, wiring.parts(one), status)

        supervisor = Supervisor(settings, actor)
        running = asyncio.create_task(supervisor.run(signals=False))
        live = [supervisor.statuses[name] for name in names]
        async with asyncio.timeout(_LIMIT_SECONDS):
            await _until(lambda: all(status.rows for status in live))
            begun, cpu, first = time.perf_counter(), time.process_time(), sum(status.rows for status in live)
            await _until(lambda: all(status.rows >= job["rows"] for status in live))
        elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
        rows = sum(status.rows for status in live) - first
        supervisor.request_stop()
        await running
        await wiring.close()
    return {"rows_per_second": rows / elapsed, "rows_per_cpu_second": rows / used}


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (a counter has no event)
        await asyncio.sleep(0.002)


async def packets(job: dict[str, Any]) -> dict[str, float]:
    """The limit of reading: the same stream, packets cut and counted, nothing decoded."""
    settings = settings_of(job)
    connection = await SourceConnection.open(address_of(settings.source))
    await connection.register(settings.source.server_id, 5)
    stream = await connection.dump(settings.source.server_id, file=job["file"], offset=4, gtids=None, buffer=2 << 20)
    data, total, count = b"", 0, 0
    begun, cpu = time.perf_counter(), time.process_time()
    while total < job["bytes"]:
        data = await stream.read(data, 4, 30)
        at, size = 0, len(data)
        while size - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 3], "little")
            if end > size:
                break
            count, at = count + 1, end
        total, data = total + at, data[at:]
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    await stream.close()
    await connection.close()
    return {"rows_per_second": job["rows"] / elapsed, "rows_per_cpu_second": job["rows"] / used}


async def json_documents(job: dict[str, Any]) -> dict[str, float]:
    """Binary JSON to text alone: the documents of this workload, as they stand in its binlog."""
    settings = settings_of(job)
    connection = await SourceConnection.open(address_of(settings.source))
    await connection.register(settings.source.server_id, 5)
    stream = await connection.dump(settings.source.server_id, file=job["file"], offset=4, gtids=None, buffer=2 << 20)
    documents: list[bytes] = []
    cutter = _documents(job, documents)
    data = b""
    while len(documents) < min(job["rows"], 100_000):
        data = await stream.read(data, cutter.need, 30)
        at, more = 0, True
        while more:
            at, more = cutter.feed(data, at, lambda: False)
        data = data[at:]
    await stream.close()
    await connection.close()
    begun, cpu = time.perf_counter(), time.process_time()
    for document in documents:
        json_text(document)
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    return {"rows_per_second": len(documents) / elapsed, "rows_per_cpu_second": len(documents) / used}


def _documents(job: dict[str, Any], documents: list[bytes]) -> EventCutter:
    """Collects the last column of the workload's rows as it stands in the binlog."""
    decoders: dict[bytes, RowDecoder] = {}

    def on_table(data: bytes, at: int, stop: int) -> None:
        event = TableMap(data[at + 6 : stop])
        if event.table == job["table"]:
            layout = event.row_schema(event.described(), DEFAULTS)
            pairs = zip(layout.fields, layout.kinds, strict=True)
            fields = tuple(replace(field, post=None) if kind == JSON else field for field, kind in pairs)
            decoders[data[at : at + 6]] = make_decoder(fields, visible=len(fields))

    def on_rows(data: bytes, at: int, stop: int) -> None:
        if (decode := decoders.get(data[at : at + 6])) is not None:
            p = at + 8 + int.from_bytes(data[at + 8 : at + 10], "little")
            documents.extend(row[-1] for row in decode(data, p + 1 + (data[p] + 7) // 8, stop))

    def on_other(data: bytes, at: int, stop: int) -> None:
        """Nothing else has documents."""

    cursor = EventCursor(job["file"], 4, checksums=True)
    return EventCutter(cursor, {ev.TABLE_MAP: on_table, _WRITE_ROWS: on_rows}, other=on_other)


async def kafka_only(job: dict[str, Any]) -> dict[str, float]:
    """The limit of sending: ready messages of the size that this workload makes, into the same sink."""
    from headrace.adapters.kafka.settings import KafkaSinkSettings
    from headrace.adapters.kafka.sink import KafkaSink
    from headrace.lease import Lease
    from headrace.model import MessageBatch

    settings = KafkaSinkSettings.model_validate({"type": "kafka", "bootstrap_servers": job["kafka"]})
    sink = KafkaSink(settings, Lease())
    await sink.start()
    position = Position("s", "f", 4, commit_time_us=time.time_ns() // 1000)
    each = job["rows_per_value"]
    value = b"x" * job["value_bytes"]
    headers = [("headrace-id", b"i" * 40), ("headrace-pos", b"1" * 19), ("headrace-position", b"p" * 24)]
    count = max(1, min(1000, 500_000 // len(value)))
    begun, cpu = time.perf_counter(), time.process_time()
    pending, sent = [], 0
    while sent < job["rows"]:
        batch = MessageBatch(job["topic"], 0, [value] * count, [headers] * count, len(value) * count, position=position)
        pending.append(await sink.publish(batch))
        sent += count * each
    await asyncio.gather(*pending)
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    await sink.close()
    return {"rows_per_second": sent / elapsed, "rows_per_cpu_second": sent / used}


async def rabbitmq_only(job: dict[str, Any]) -> dict[str, float]:
    """Ready messages of one row into a queue of RabbitMQ, each confirmed."""
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
    """The same into a topic of RocketMQ, in turn for each of some message groups."""
    from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
    from headrace.adapters.rocketmq.sink import RocketMqSink
    from headrace.lease import Lease
    from headrace.model import MessageBatch

    made = {"type": "rocketmq", "hosts": job["rocketmq"]}
    sink = RocketMqSink(RocketMqSinkSettings.model_validate(made), Lease())
    await sink.start()
    value, count, groups = b"x" * job["value_bytes"], 25, job["groups"]
    headers = [("headrace-id", b"i" * 40), ("headrace-pos", b"1" * 19), ("headrace-position", b"p" * 24)]
    await (await sink.publish(MessageBatch(job["topic"], 0, [value], [headers])))  # the client asks for the route first
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


def reference(job: dict[str, Any]) -> dict[str, float]:
    """mysql-replication over the same binlog, rows decoded and nothing else."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import WriteRowsEvent

    source = job["source"]
    stream = BinLogStreamReader(
        connection_settings={
            "host": source["host"],
            "port": source["port"],
            "user": source["user"],
            "passwd": source["password"],
        },
        server_id=os.getpid() + 500_000,
        log_file=job["file"],
        log_pos=4,
        resume_stream=True,
        only_events=[WriteRowsEvent],
        only_tables=[job["table"]],
    )
    rows, begun, cpu = 0, time.perf_counter(), time.process_time()
    for event in stream:
        rows += len(event.rows)
        if rows >= job["rows"]:
            break
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    stream.close()
    return {"rows_per_second": rows / elapsed, "rows_per_cpu_second": rows / used}


def main() -> None:
    """Reads the job as JSON from the command line."""
    job = json.loads(sys.argv[1])
    job["other_cores"] = sorted(os.sched_getaffinity(0) - {0})
    os.sched_setaffinity(0, {0})
    spare_collector()
    kinds = {"pipeline": pipeline, "packets": packets, "kafka": kafka_only, "json": json_documents, "several": several}
    kinds |= {"rabbitmq": rabbitmq_only, "rocketmq": rocketmq_only}
    kinds |= {"cursor": tables.cursor, "stream_beside": beside.stream, "latency_beside": beside.latency}
    alone = {"reference": reference, "program": tables.program, "debezium": tables.debezium}
    kind = job["kind"]
    figures = alone[kind](job) if kind in alone else asyncio.run(kinds[kind](job))
    figures["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
