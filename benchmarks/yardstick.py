"""The yardstick: mysql-replication over the same binlog, in a separate process; it only decodes rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from benchmarks.workloads import Workload

MOST_ROWS = {"w1": 112_000, "w2l": 40_000}
"""It is slow and steady, and changes of all kinds come from the beginning on, so it reads only the first of them."""


def measure(source: dict[str, Any], workload: Workload) -> dict[str, float]:
    """Returns rows per second of real time, and microseconds of CPU a row."""
    rows = min(workload.rows, MOST_ROWS.get(workload.name, workload.rows))
    job = {"source": source, "table": workload.table, "file": workload.file, "rows": rows}
    command = [sys.executable, "-m", "benchmarks.yardstick", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"bench: mysql-replication failed:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Reads the job as JSON from the command line."""
    job = json.loads(sys.argv[1])
    login = {key: job["source"][key] for key in ("host", "port", "user")}
    stream = BinLogStreamReader(
        connection_settings={**login, "passwd": job["source"]["password"]},
        server_id=os.getpid() + 500_000,
        log_file=job["file"],
        log_pos=4,
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_tables=[job["table"]],
    )
    rows, begun, cpu = 0, 0.0, 0.0
    first = 0
    for event in stream:
        rows += len(event.rows)
        if not begun:  # the start is not measured
            first, begun, cpu = rows, time.perf_counter(), time.process_time()
        if rows >= job["rows"]:
            break
    elapsed, used = time.perf_counter() - begun, time.process_time() - cpu
    stream.close()
    print(json.dumps({"rows_per_second": (rows - first) / elapsed, "cpu_us": used * 1e6 / (rows - first)}))


if __name__ == "__main__":
    main()
