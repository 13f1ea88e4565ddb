"""The Spark consumer with each further PySpark that it knows, in virtual environments of their own."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from devstack import Stack
from headrace_spark.session.pyspark_internals import KNOWN_VERSIONS
from tests.canal_messages import START, change, history
from tests.joined_tables import Source, canal_message

from .conftest import JOINED, ROOT, Pipeline

pytestmark = [pytest.mark.server, pytest.mark.long]

VERSIONS = [one for one in KNOWN_VERSIONS["pyspark"] if one != pyspark.__version__]
"""Those that are not the installed one, with which all other tests run."""


@pytest.fixture(scope="module", params=VERSIONS)
def python(stack: Stack, request: pytest.FixtureRequest) -> str:
    """A Python that has this clone, and what the lock names but for Spark."""
    wanted = f"pyspark=={request.param}"
    pins = re.findall(r"^\S+==\S+", (ROOT / "requirements-dev.lock").read_text(), flags=re.MULTILINE)
    lock = "\n".join(one for one in pins if not one.startswith(("pyspark==", "py4j==")))

    def build(fresh: Path) -> None:
        (fresh / "constraints").write_text(lock)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", fresh], check=True)
        pip = [sys.executable, "-m", "pip", "--python", fresh / "bin/python", "install", "-q"]
        cache = {"PIP_CACHE_DIR": str(stack.cache.folder("pip")), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run(
            [*pip, "-c", fresh / "constraints", "-e", f"{ROOT}[spark]", wanted],
            check=True,
            env={**os.environ, **cache},
        )

    recipe = f"{wanted} {sys.version} {ROOT} {lock} {(ROOT / 'pyproject.toml').read_text()}"
    made = stack.cache.install(f"pyspark-{request.param}", recipe, build) / "bin/python"
    version = [made, "-c", "import pyspark; print('pyspark==' + pyspark.__version__)"]
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip() == wanted
    return str(made)


async def test_changes_and_a_kill(pipeline: Pipeline, python: str) -> None:
    pipeline.python = python
    messages, expected = history(pipeline.topic, 4000)
    await pipeline.send([*messages, b"not json"])
    process = pipeline.start()
    pipeline.wait_for(lambda: pipeline.events("batch done"), 120)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
    pipeline.drain()
    assert pipeline.documents() == expected
    [letter] = await pipeline.dead_letters(1)
    assert letter.value == b"not json"
    await pipeline.send(
        [change(pipeline.topic, START + 10**6, "TRUNCATE", data=None, isDdl=True, sql="TRUNCATE TABLE t")]
    )
    pipeline.drain()
    assert pipeline.documents() == {}


async def test_joins(pipeline: Pipeline, python: str) -> None:
    pipeline.python = python
    pipeline.config.write_text(pipeline.config.read_text() + JOINED.format(index=pipeline.topic))
    source = Source(random.Random(35))
    while len(source.messages) < 1500:
        source.step()
    await pipeline.send([canal_message(one) for one in source.messages])
    pipeline.drain()
    assert {key: body for key, (_, body) in pipeline.documents(pipeline.topic).items()} == source.join()
