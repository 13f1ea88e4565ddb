"""Uses of PySpark below its documented interface, which are only here: starting its JVM, and its end without a stack
trace."""

from __future__ import annotations

import socketserver
import sys
from collections.abc import Mapping
from typing import Any

import pyspark
import structlog
from pyspark import SparkConf, SparkContext

from headrace_spark.errors import SessionError

log = structlog.get_logger("headrace_spark.session.session")

KNOWN_VERSIONS = {"pyspark": ("3.5.7", "4.0.0", "4.1.1", "4.2.0")}
"""Versions that all of this was tested with. It relies on launch_gateway() of pyspark.java_gateway and its two
parameters, on the context's _accumulatorServer, and on SparkConf's _jvm."""


def unknown_version() -> str:
    """Returns a sentence about the installed PySpark if it is not a known version, else ""."""
    known = KNOWN_VERSIONS["pyspark"]
    if pyspark.__version__ in known:
        return ""
    return f"PySpark {pyspark.__version__} is installed, and headrace has run with {', '.join(known)} only"


def launch_jvm(conf: SparkConf | None = None, process: Mapping[str, Any] | None = None) -> Any:
    """Starts Spark's JVM and returns py4j's gateway to it; under spark-submit, where nothing is given, that to the
    existing JVM. `process` are arguments of Popen. Raises SessionError for a PySpark without this function, and
    PySpark's errors if the JVM does not start."""
    try:
        from pyspark.java_gateway import launch_gateway

        launch: Any = launch_gateway
    except ImportError as error:
        said = unknown_version() or f"PySpark {pyspark.__version__} is incomplete"
        raise SessionError(f"Spark did not start: {said} ({error}): pip install 'headrace[spark]'") from None
    return launch(conf, dict(process)) if process is not None else launch()


def conf_of(gateway: Any) -> SparkConf:
    """Returns the properties that the JVM of spark-submit was given."""
    return SparkConf(_jvm=gateway.jvm)


def hush_accumulators(context: SparkContext) -> None:
    """Prevents a stack trace of the accumulator server when the JVM dies: we report that ourselves. A PySpark without
    such a server is left unchanged."""
    server = getattr(context, "_accumulatorServer", None)
    if isinstance(server, socketserver.BaseServer):
        server.handle_error = _connection_broke  # type: ignore[assignment,method-assign]


def _connection_broke(_request: Any, _client: Any) -> None:
    log.debug("a connection of Spark's broke", reason=str(sys.exc_info()[1]))
