"""The machine and [spark]: memory, directories, the checkpoint, and properties that contradict ours."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from headrace_common.folders import first_folder, try_folder
from headrace_documents.cli import Findings
from headrace_spark.settings import SparkSettings
from headrace_spark.source.kafka_client import kafka_reason

_GIB = 1 << 30
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": _GIB, "t": 1 << 40}
_LEAST_FREE = _GIB
_OURS = {
    "spark.master": "master",
    "spark.app.name": "app_name",
    "spark.driver.memory": "driver_memory",
    "spark.jars.ivy": "ivy",
    "spark.local.dir": "scratch",
    "spark.sql.streaming.checkpointLocation": "checkpoint",
}
"""Properties of Spark, and the equivalent keys of [spark]."""


def check_machine(findings: Findings, settings: SparkSettings) -> None:
    """Checks what needs no JVM."""
    _check_memory(findings, settings)
    _check_conf(findings, settings)
    checkpoint = settings.checkpoint_location()
    folders = {"scratch": settings.scratch_directory()}
    if settings.ivy and not settings.jars:
        folders["ivy"] = Path(settings.ivy).absolute()
    if "://" not in checkpoint:
        folders["checkpoint"] = Path(checkpoint)
        if not settings.master.startswith("local"):
            findings.wrong(
                "checkpoint",
                f"{checkpoint} is a directory of this machine, and [spark] master is a cluster",
                "give a URL that the driver and all executors can reach, such as hdfs://... or s3a://...",
            )
    for name, folder in folders.items():
        _check_folder(findings, name, folder)


def _check_memory(findings: Findings, settings: SparkSettings) -> None:
    text = settings.driver_memory
    wanted = int(text[:-1]) * _UNITS[text[-1]]
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    reported = f"driver_memory is {text}, and the machine has {there / _GIB:.1f} GiB"
    if wanted > there:
        findings.wrong("memory", reported, "lower [spark] driver_memory")
    elif wanted > 0.7 * there:
        findings.warn("memory", reported, "Spark's Python workers need memory in addition: lower [spark] driver_memory")
    else:
        findings.ok("memory", reported)


def _check_conf(findings: Findings, settings: SparkSettings) -> None:
    for name in sorted(settings.conf):
        if key := _OURS.get(name):
            findings.warn("[spark] conf", f"{name} contradicts `{key}`", f"take it away, and set `{key}` in [spark]")
        elif name in ("spark.jars", "spark.jars.packages"):
            findings.wrong(
                "[spark] conf",
                f"{name} takes the place of the jars of Spark's Kafka source",
                "put all jars into [spark] jars, those of the Kafka source too",
            )
    if settings.master in ("local", "local[*]") or (
        settings.master.startswith("local[") and "," not in settings.master
    ):
        findings.warn(
            "[spark] master",
            f"with {settings.master} a task that fails is not tried again",
            'give attempts, as in "local[2,4]"',
        )


def _check_folder(findings: Findings, name: str, folder: Path) -> None:
    try:
        try_folder(folder)  # in the nearest existing folder: the rest is created at the start
        free = shutil.disk_usage(first_folder(folder)).free
    except OSError as error:
        findings.wrong(name, f"{folder} can't be written: {error.strerror}", f"change its rights, or [spark] {name}")
        return
    reported = f"{folder} can be written, {free / _GIB:.1f} GiB are free"
    if free < _LEAST_FREE:
        findings.warn(name, reported, "make room: a full disk ends the query")
    else:
        findings.ok(name, reported)


def check_checkpoint_url(findings: Findings, jvm: Any, location: str) -> None:
    """Tests a checkpoint that is a URL, with Hadoop's file system as Spark does: creates a file in it, and deletes
    it."""
    if "://" not in location:
        return
    try:
        folder = jvm.org.apache.hadoop.fs.Path(location)
        trial = jvm.org.apache.hadoop.fs.Path(folder, f"headrace-check-{uuid.uuid4().hex[:8]}")
        system = folder.getFileSystem(jvm.org.apache.hadoop.conf.Configuration())
        there = bool(system.exists(folder))
        system.create(trial).close()
        system.delete(trial if there else folder, True)
    except Exception as error:
        findings.wrong("checkpoint", f"{location} can't be written: {kafka_reason(error)}", "see [spark] checkpoint")
        return
    findings.ok("checkpoint", f"{location} can be written by the driver; it was tried with a file")
