"""Reads of a whole table by others than headrace, to compare a snapshot with; see benchmarks/others.py."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiomysql

from benchmarks.workloads import SCHEMA
from devstack.process import clean_environment

_TOGETHER = 1000
"""Rows that are taken from the cursor at a time."""
_LIMIT_SECONDS = 560


async def cursor(job: dict[str, Any]) -> dict[str, float]:
    """Does what a user's own program would do: aiomysql returns all rows as tuples, which are counted."""
    connection = await aiomysql.connect(**job["source"])
    rows = await connection.cursor(aiomysql.SSCursor)
    begun, cpu = time.perf_counter(), time.process_time()
    await rows.execute(f"SELECT * FROM {SCHEMA}.{job['table']}")
    count = 0
    while some := await rows.fetchmany(_TOGETHER):
        count += len(some)
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    await rows.close()
    connection.close()
    _require_all(count, job)
    return {"rows_per_second": count / elapsed, "rows_per_cpu_second": count / used}


def _require_all(count: int, job: dict[str, Any]) -> None:
    if count != job["rows"]:
        raise SystemExit(f"{count} rows were read, and the table has {job['rows']}")


def program(job: dict[str, Any]) -> dict[str, float]:
    """Runs a program from its start to its end; its output is discarded. Its CPU time is that of the child process."""
    before, begun = _children(), time.perf_counter()
    done = subprocess.run(
        job["command"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_SECONDS,
        env=clean_environment(),
    )
    elapsed, used = time.perf_counter() - begun, _children() - before
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return {"rows_per_second": job["rows"] / elapsed, "rows_per_cpu_second": job["rows"] / used}


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def debezium(job: dict[str, Any]) -> dict[str, float]:
    """Runs Debezium's engine, which counts and measures itself, from its first batch to the last row."""
    with TemporaryDirectory() as folder:
        properties = Path(folder) / "engine.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in job["properties"].items()))
        done = subprocess.run(
            [*job["command"], str(properties), str(job["rows"]), job.get("begin", "")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            env=clean_environment(),
        )
    if done.returncode:
        raise SystemExit((done.stdout + done.stderr)[-3000:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
