"""What the README has a user install, without the lock file: the newest versions that pyproject.toml allows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from devstack.ports import free_port
from headrace import __version__
from headrace_spark.session.pyspark_internals import KNOWN_VERSIONS

ROOT = Path(__file__).parents[2]
DESTINATION = """
[source]
host = "127.0.0.1"
port = {port}
user = "canal"
password = "p"
[route]
topic = "shop"
[sink]
type = "null"
"""
SPARK = """
[kafka]
bootstrap_servers = "127.0.0.1:{port}"
topics = ["shop"]
dead_letter_topic = "dead"
[elasticsearch]
hosts = ["http://127.0.0.1:{port}"]
[spark]
checkpoint = "{folder}/checkpoint"
scratch = "{folder}/scratch"
ivy = "{root}/.cache/ivy"
"""
CONSUME = """
[rabbitmq]
hosts = ["127.0.0.1:{port}"]
user = "guest"
password = "p"
queue = "shop"
[elasticsearch]
hosts = ["http://127.0.0.1:{port}"]
"""


def readme_extras() -> str:
    (extras,) = re.findall(r"pip install '(\.\[[^]]+\])'", (ROOT / "README.md").read_text())
    return str(extras)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs, in an environment of its own."""
    venv = tmp_path_factory.mktemp("readme") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "-q", readme_extras()]
    done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return venv / "bin"


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "config", "says"),
    [
        ("headrace", "", "127.0.0.1:{port}"),
        ("headrace-spark", SPARK, "Kafka can't be reached: 127.0.0.1:{port}"),
        ("headrace-consume", CONSUME, "RabbitMQ can't be reached: 127.0.0.1:{port}"),
    ],
    ids=["headrace", "headrace-spark", "headrace-consume"],
)
def test_each_program_checks_what_it_is_given_with_what_the_readme_installs(
    programs: Path, program: str, config: str, says: str, tmp_path: Path
) -> None:
    port, main = free_port(), tmp_path / "main.toml"
    main.write_text(config.format(port=port, folder=tmp_path, root=ROOT))
    (tmp_path / "destinations").mkdir()
    (tmp_path / "destinations/shop.toml").write_text(DESTINATION.format(port=port))
    done = subprocess.run(
        [programs / program, "check", "--config", main], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert says.format(port=port) in done.stdout + done.stderr
    for word in ("Traceback", "ImportError", "please report it", "PySpark"):
        assert word not in done.stdout + done.stderr


@pytest.mark.long
def test_the_readme_installs_a_pyspark_that_has_run_in_the_tests(programs: Path) -> None:
    shown = [programs / "python", "-c", "import pyspark; print(pyspark.__version__)"]
    done = subprocess.run(shown, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() in KNOWN_VERSIONS["pyspark"]


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("cargo"), reason="this machine has no Rust tool chain")
def test_the_readme_installs_native_code(programs: Path) -> None:
    done = subprocess.run([programs / "headrace", "version"], capture_output=True, text=True, timeout=60, check=True)
    assert f"\nheadrace-native {__version__}\n" in done.stdout
