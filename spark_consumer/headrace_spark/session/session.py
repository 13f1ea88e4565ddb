"""The Spark session: finds Java, the jars of Spark's Kafka source, and sets the properties that matter here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
import structlog
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from headrace_spark.errors import ConfError, JavaError, SessionError
from headrace_spark.session.jvm_log import JvmOutput, Take, java_options
from headrace_spark.session.pyspark_internals import hush_accumulators, launch_jvm, unknown_version
from headrace_spark.session.submitted import is_submitted, open_submitted
from headrace_spark.settings import SparkSettings
from headrace_spark.source.connection import EXCLUDES
from headrace_spark.source.kafka import java_reason

log = structlog.get_logger(__name__)

MIN_JAVA = 17
_QUERY = {
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # The last batches of the checkpoint, which grows with every batch, are enough.
    "spark.sql.streaming.minBatchesToRetain": "20",
    # A query that does not end is no reason to wait: the process ends, and its JVM with it.
    "spark.sql.streaming.stopTimeout": "5s",
}
"""Properties of the query, wherever it runs."""
_REMEDY = (
    f"Spark needs Java {MIN_JAVA} or newer: install one (for example the package openjdk-17-jre-headless) "
    "and put it on PATH, or set JAVA_HOME"
)


def check_java() -> str:
    """Returns the version of the Java that Spark will run on. Raises JavaError if there is none new enough."""
    if is_submitted():
        return "of spark-submit"
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java") or ""
    if not java:
        raise JavaError(f"no Java found: JAVA_HOME is not set and there is no `java` on PATH. {_REMEDY}.")
    where = f"{java} (from JAVA_HOME)" if home else java
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{where} can't be run: {error}. {_REMEDY}.") from None
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', done.stderr + done.stdout)
    if done.returncode or not found:
        raise JavaError(f"{where} does not tell its version. {_REMEDY}.")
    if int(found[1]) < MIN_JAVA:
        raise JavaError(f"{where} is Java {found[1]}. {_REMEDY}.")
    return found[1]


def kafka_package() -> str:
    """Returns the Maven coordinates of the Kafka source that fits the installed pyspark."""
    jars = Path(pyspark.__file__).parent / "jars"
    names = [path.name for path in jars.glob("scala-library-*.jar")]
    scala = ".".join(names[0].removeprefix("scala-library-").split(".")[:2]) if names else "2.13"
    return f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{pyspark.__version__}"


def _jar_list(settings: SparkSettings, more: Sequence[str]) -> Path | None:
    if not settings.ivy:
        return None
    names = [one.split(":", 1)[1].replace(":", "-") for one in (kafka_package(), *more)]
    return Path(settings.ivy).absolute() / f"{'+'.join(names)}.jars"


def local_jars(settings: SparkSettings, more: Sequence[str] = ()) -> list[str]:
    """Returns the jars that already exist: from the configuration or resolved by an earlier start. Empty: they must be
    resolved. `more` are packages besides the Kafka source."""
    if settings.jars:
        missing = [jar for jar in settings.jars if not Path(jar).is_file()]
        if missing:
            raise SessionError(f"[spark] jars: there is no file {', '.join(missing)}")
        return [str(Path(jar).absolute()) for jar in settings.jars]
    listed = _jar_list(settings, more)
    if listed is None or not listed.is_file():
        return []
    jars = [str(listed.parent / "jars" / name) for name in listed.read_text(encoding="utf-8").split()]
    return jars if jars and all(Path(jar).is_file() for jar in jars) else []


def remember_jars(settings: SparkSettings, found: str, more: Sequence[str] = ()) -> None:
    """Records what was resolved, `spark.jars` of the JVM, so that the next start needs no network and no resolving."""
    listed = _jar_list(settings, more)
    if listed is None:
        return
    bundled = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    resolved = [Path(jar).name for jar in found.split(",") if jar]
    # Ivy puts the organisation before the name. Jars of pyspark itself must not be loaded a second time.
    needed = [name for name in resolved if name.split("_", 1)[-1] not in bundled]
    fresh = listed.with_name(f"{listed.name}.{os.getpid()}")  # another process may read the list meanwhile
    fresh.write_text("\n".join(needed) + "\n", encoding="utf-8")
    fresh.replace(listed)


def open_session(
    settings: SparkSettings, take: Take | None = None, more: Sequence[str] = ()
) -> tuple[SparkSession, subprocess.Popen[bytes] | None]:
    """Starts Spark; returns it and the process of its JVM, None for one that somebody else started. `take` gets the
    workers' events first, and returns which of them are no lines for the log; under spark-submit nobody reads them
    here. `more` are packages besides the Kafka source. Raises SessionError with the remedy."""
    if unknown := unknown_version():
        log.warning(unknown)
    if is_submitted():
        return open_submitted(settings, _QUERY, kafka_package(), check_conf), None
    properties = jvm_properties(settings, more)
    try:
        output = JvmOutput(settings.java_log_file(), take)
    except OSError as error:
        raise SessionError(f"Spark did not start: {error.filename}: {error.strerror}") from error
    jars = "spark.jars" in properties
    conf = SparkConf(loadDefaults=False)
    conf.setMaster(settings.master).setAppName(settings.app_name).setAll(list(properties.items()))
    # The JVM keeps its start directory and leaves an `artifacts` folder there (Spark 4.0).
    place = {"stdout": output.stdout, "stderr": output.stderr, "cwd": settings.scratch_directory()}
    try:
        try:
            gateway = launch_jvm(conf, place)
        finally:
            output.close()
        check_conf(gateway.jvm, settings.conf)
        hush_accumulators(SparkContext(conf=conf, gateway=gateway))
        spark = SparkSession.Builder().getOrCreate()
    except SessionError:
        raise
    except Exception as error:
        said = java_complaint(output.last) or java_reason(error).rstrip(".")
        if key := guessed_key(said, settings.conf):
            raise ConfError(key, settings.conf[key], said) from error
        packages = " and ".join((kafka_package(), *more))
        hint = "" if jars else f" If {packages} could not be downloaded, name local files in [spark] jars."
        raise SessionError(f"Spark did not start: {said}.{hint}") from error
    if not jars:
        remember_jars(settings, spark.sparkContext.getConf().get("spark.jars") or "", more)
    return spark, getattr(gateway, "proc", None)


def jvm_properties(settings: SparkSettings, more: Sequence[str] = ()) -> dict[str, str]:
    """Returns Spark's properties for its JVM; creates the scratch directory and sets the environment variables that
    Spark reads. Raises SessionError."""
    local = settings.master.startswith("local")
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = sys.executable if local else _python_there(settings)
    scratch = settings.scratch_directory()
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        options = java_options(scratch, settings.java_log_file())
    except OSError as error:
        raise SessionError(f"Spark did not start: {error.filename}: {error.strerror}") from error
    os.environ.setdefault("SPARK_LOCAL_DIRS", str(scratch))
    properties = {
        "spark.driver.memory": settings.driver_memory,
        "spark.ui.enabled": "false",
        # An expression that can't be computed for a row is null, and stops nothing.
        "spark.sql.ansi.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        # A CHAR has no spaces at its end, in MySQL as in messages.
        "spark.sql.readSideCharPadding": "false",
        **_QUERY,
    }
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        properties |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    jars = local_jars(settings, more)
    if jars:
        properties["spark.jars"] = ",".join(jars)
    else:
        packages = ",".join((kafka_package(), *more))
        log.info("resolving the jars of Spark's Kafka source", package=packages)
        properties["spark.jars.packages"] = packages
        properties["spark.jars.excludes"] = EXCLUDES
        if settings.ivy:
            Path(settings.ivy).mkdir(parents=True, exist_ok=True)
            properties["spark.jars.ivy"] = str(Path(settings.ivy).absolute())
    properties |= settings.conf
    # Only for the driver: on another machine the file does not exist, and the cluster has its own for executors.
    name = "spark.driver.extraJavaOptions"
    if "log4j2.configurationFile" not in properties.get(name, ""):
        properties[name] = f"{properties.get(name, '')} {options}".strip()
    return properties


def check_conf(jvm: Any, conf: Mapping[str, str]) -> None:
    """Makes Spark parse the values of [spark.conf] that it knows, before anything depends on them. Raises ConfError."""
    if not conf:
        return
    try:
        # These Scala objects register each existing property when they are initialized.
        for name in ("internal.config.package$", "sql.internal.SQLConf$"):
            jvm.java.lang.Class.forName(f"org.apache.spark.{name}")
        known = getattr(getattr(jvm.org.apache.spark.internal.config, "ConfigEntry$"), "MODULE$")
    except Exception as error:
        log.debug("the properties of Spark can't be looked up", reason=java_reason(error))
        return
    for key, value in conf.items():
        entry = known.findEntry(key)
        if entry is None or "${" in value:  # which Spark fills in
            continue
        try:
            entry.valueConverter().apply(value)
        except Exception as error:
            raise ConfError(key, value, java_reason(error)) from None


def guessed_key(said: str, conf: Mapping[str, str]) -> str:
    """Returns the property of [spark.conf] that an error of Java's is about, "" if none is visible."""
    words = said.lower()
    for key, value in conf.items():
        plain = key.removeprefix("spark.").replace(".", " ").lower()
        if key in said or plain in words or (len(value) > 5 and value in said.split()):
            return key
    return ""


def _python_there(settings: SparkSettings) -> str:
    """Returns the Python of a cluster's workers, which must have our packages: as configured, else the same path as
    here. `python3` on PATH may have another version or lack them."""
    said = settings.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    return said or sys.executable


def java_complaint(lines: Iterable[str]) -> str:
    """Returns the line of the JVM that looks like the cause."""
    reported = [line for line in lines if "xception" in line or "rror" in line]
    return reported[0].split(" in thread ", 1)[-1].strip().rstrip(".")[:500] if reported else ""
