"""What is done below PySpark's documented interface, and only here: its JVM starts, and dies without a stack trace."""

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
"""What all of this was tried with. It relies on launch_gateway() of pyspark.java_gateway and its two parameters, on the
context's _accumulatorServer, and on SparkConf's _jvm."""


def unknown_version() -> str:
    """A sentence about the installed PySpark when it is none of the known ones, else ""."""
    known = KNOWN_VERSIONS["pyspark"]
    if pyspark.__version__ in known:
        return ""
    return f"PySpark {pyspark.__version__} is installed, and headrace has run with {', '.join(known)} only"


def launch_jvm(conf: SparkConf | None = None, process: Mapping[str, Any] | None = None) -> Any:
    """Starts Spark's JVM and returns py4j's gateway to it; under spark-submit, where nothing is given, that to the JVM
    which is there. `process` are arguments of Popen. Raises SessionError for a PySpark that has no such way, and
    whatever PySpark raises when the JVM does not start."""
    try:
        from pyspark.java_gateway import launch_gateway

        launch: Any = launch_gateway
    except ImportError as error:
        said = unknown_version() or f"PySpark {pyspark.__version__} is incomplete"
        raise SessionError(f"Spark did not start: {said} ({error}): pip install 'headrace[spark]'") from None
    return launch(conf, dict(process)) if process is not None else launch()


def conf_of(gateway: Any) -> SparkConf:
    """The properties that the JVM of spark-submit was given."""
    return SparkConf(_jvm=gateway.jvm)


def hush_accumulators(context: SparkContext) -> None:
    """Keeps the server that takes accumulators from writing a stack trace when the JVM dies: we report that ourselves.
    A PySpark without such a server is left as it is."""
    server = getattr(context, "_accumulatorServer", None)
    if isinstance(server, socketserver.BaseServer):
        server.handle_error = _connection_broke  # type: ignore[assignment,method-assign]


def _connection_broke(_request: Any, _client: Any) -> None:
    log.debug("a connection of Spark's broke", reason=str(sys.exc_info()[1]))
