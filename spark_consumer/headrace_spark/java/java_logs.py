"""The log of Spark's JVM: short errors for us, and all of it in a rolling file when somebody asks."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import quoteattr

MARK = "headrace-java"
"""Begins each line that log4j writes for us; what the JVM writes otherwise has none."""
SEPARATOR = "|"
"""Between the parts of such a line: mark, logger, text. No name of a logger has it."""

# What these say at ERROR is the story of a failed batch, with stack traces in the text. The query's failure says why.
# (PythonGatewayServer has the root's level: Spark takes it for that of a shell, and would filter all lines by it.)
_TOLD_BY_US = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
    "org.apache.spark.util.TaskCompletionListenerImpl",
    "org.apache.spark.SparkContext",
    "py4j",
)

_CONFIG = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="OFF">
  <Appenders>
    <Console name="short" target="SYSTEM_OUT">
      <ThresholdFilter level="ERROR"/>
      <PatternLayout alwaysWriteExceptions="false" pattern={pattern}/>
    </Console>
{file}  </Appenders>
  <Loggers>
    <Logger name="org.apache.spark.api.python.PythonGatewayServer" level={level}/>
{quiet}    <Root level={level}>
      <AppenderRef ref="short"/>
{reference}    </Root>
  </Loggers>
</Configuration>
"""
_FILE = """\
    <RollingFile name="all" fileName={name} filePattern={rolled}>
      <PatternLayout pattern="%d{{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}} %p %c: %m%n"/>
      <SizeBasedTriggeringPolicy size="20MB"/>
      <DefaultRolloverStrategy max="5"/>
    </RollingFile>
"""


def log4j_config(file: str) -> str:
    """The configuration of log4j 2, for Spark 3.5 and 4. `file` is the rolling file, "" for none."""
    pattern = SEPARATOR.join((MARK, "%c{1}", "%replace{%m}{[\\r\\n][\\s\\S]*}{}")) + "%n"
    reference = '      <AppenderRef ref="all"/>\n' if file else ""
    level = "INFO" if file else "ERROR"
    quiet = ""
    for name in _TOLD_BY_US:
        own = reference.replace("      <", "<").strip()
        quiet += f'    <Logger name="{name}" level="{level if file else "OFF"}" additivity="false">{own}</Logger>\n'
    return _CONFIG.format(
        pattern=quoteattr(pattern),
        file=_FILE.format(name=quoteattr(file), rolled=quoteattr(f"{file}.%i")) if file else "",
        quiet=quiet,
        level=quoteattr(level),
        reference=reference,
    )


def java_options(scratch: Path, file: str) -> str:
    """Writes the configuration into `scratch`; the option of the JVM that names it. Raises OSError."""
    config = scratch / "log4j2.xml"
    config.write_text(log4j_config(file), encoding="utf-8")
    return f'"-Dlog4j2.configurationFile={config.as_uri()}"'
