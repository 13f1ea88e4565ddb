"""Spark's JVM without a session: its Kafka client, with the same jars and options as a run."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from pyspark import SparkConf

from headrace_spark.errors import ConfError, SessionError
from headrace_spark.session.pyspark_internals import launch_jvm
from headrace_spark.session.session import (
    check_conf,
    check_java,
    guessed_key,
    java_complaint,
    jvm_properties,
    kafka_package,
    remember_jars,
)
from headrace_spark.session.submitted import is_submitted, submitted_jvm
from headrace_spark.settings import SparkSettings

_END_SECONDS = 10


@contextlib.contextmanager
def open_jvm(settings: SparkSettings) -> Iterator[Any]:
    """Starts the JVM, which takes about two seconds, and more if jars must be downloaded; yields py4j's view of it. It
    ends with the block, except that of spark-submit. Raises JavaError and SessionError."""
    if is_submitted():
        yield submitted_jvm().jvm
        return
    check_java()
    properties = jvm_properties(settings)
    resolves = "spark.jars.packages" in properties
    # Spark's own log goes there too, so that a command's output stays readable.
    with tempfile.TemporaryFile() as said:
        gateway = _launch(properties, said, resolves, settings.conf)
        try:
            check_conf(gateway.jvm, settings.conf)
            if resolves:
                remember_jars(settings, gateway.jvm.java.lang.System.getProperty("spark.jars") or "")
            yield gateway.jvm
        finally:
            gateway.shutdown()
            # The JVM ends when its standard input is closed.
            gateway.proc.stdin.close()
            try:
                gateway.proc.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                gateway.proc.kill()
                gateway.proc.wait()


def _launch(properties: dict[str, Any], said: IO[bytes], resolves: bool, own: Mapping[str, str]) -> Any:
    conf = SparkConf(loadDefaults=False)
    for name, value in properties.items():
        conf.set(name, value)
    try:
        return launch_jvm(conf, {"stdout": subprocess.DEVNULL, "stderr": said})
    except SessionError:
        raise
    except Exception:
        said.seek(0)
        lines = [line for line in said.read()[-20_000:].decode("utf-8", "replace").splitlines() if line.strip()]
        why = java_complaint(lines) or (lines or ["it says nothing"])[-1].strip().rstrip(".")
        if key := guessed_key(why, own):
            raise ConfError(key, own[key], why) from None
        hint = f" {kafka_package()} could not be downloaded? Then name local files in [spark] jars." if resolves else ""
        raise SessionError(f"Spark's JVM did not start: {why}.{hint}") from None
