"""The Containerfile: without an engine, all of it that can be looked at and run."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

from tests.containerfile import AWAY, FILE, final, instructions
from tests.support import DaemonProcess, eventually

ROOT = Path(__file__).parents[2]


def test_the_linter_finds_nothing() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--failure-threshold=style", FILE],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_runs_as_a_number_that_is_not_root_in_the_folder_of_the_state() -> None:
    user, group = final("USER").split(":")
    assert int(user) == int(group) > 0
    assert final("WORKDIR") == final("VOLUME") == "/var/lib/headrace"
    assert final("STOPSIGNAL") == "SIGTERM"
    assert json.loads(final("ENTRYPOINT")) + json.loads(final("CMD")) == ["headrace", "run"]


def test_the_container_has_the_same_packages_as_the_debian_package() -> None:
    for file in (FILE, ROOT / "packaging/build-deb"):
        assert len(re.findall(r"-r requirements\.lock\b", file.read_text())) == 1, file


def test_what_the_build_is_given_is_enough_and_holds_nothing_else(tmp_path: Path) -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    context = tmp_path / "context"
    context.mkdir()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    made = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    # The build would not miss the examples and units.
    assert {Path(name).parts[0] for name in (*made["packages"], *made["shared-data"])} <= set(allowed)
    for name in allowed:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, context)
    assert (context / "requirements.lock").is_file()
    assert (context / "requirements-build.lock").is_file()
    assert not list(context.glob(".*"))
    # As the stage `native` has made it; here any file does.
    library = tmp_path / "libheadrace_native.so"
    library.write_bytes(b"native code")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, context]
    env = os.environ | {"HEADRACE_NATIVE": str(library)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("headrace-*-cp311-abi3-*.whl")
    assert ZipFile(wheel).read("headrace_native.abi3.so") == b"native code"


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("cargo"), reason="this machine has no Rust tool chain")
def test_the_stage_for_native_code_makes_the_file_that_the_build_takes(tmp_path: Path) -> None:
    found = instructions()
    assert found[2:5] == [("FROM", "${RUST} AS native"), ("WORKDIR", "/native"), ("COPY", "native .")]
    shutil.copytree(ROOT / "native", tmp_path / "native", ignore=shutil.ignore_patterns("target"))
    env = {name: value for name, value in os.environ.items() if name != "CARGO_TARGET_DIR"}
    done = subprocess.run(
        found[5][1], shell=True, cwd=tmp_path / "native", env=env, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    taken, setting = (one for one in found if "HEADRACE_NATIVE" in one[1] or "--from=native" in one[1])
    source, folder = taken[1].removeprefix("--from=native ").split()
    assert (tmp_path / source.lstrip("/")).is_file()
    assert setting[1] == f"HEADRACE_NATIVE={folder}{Path(source).name}"


def test_compose_builds_headrace_from_the_same_file() -> None:
    build = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["headrace"]["build"]
    assert ROOT / build["dockerfile"] == FILE
    assert sorted(build["args"]) == sorted(rest for word, rest in instructions() if word == "ARG")


def test_the_health_check_says_whether_the_daemon_answers_and_asks_no_proxy(tmp_path: Path) -> None:
    program, *words = json.loads(final("HEALTHCHECK").partition("CMD ")[2])
    assert program == "python"
    daemon = DaemonProcess(tmp_path / "daemon", {"shop": AWAY}).start()

    def check() -> int:
        command = [sys.executable, *(word.replace(":9180/", f":{daemon.port}/") for word in words)]
        env = {"http_proxy": "http://127.0.0.1:1"}
        return subprocess.run(command, env=env, capture_output=True, timeout=60).returncode

    try:
        eventually(lambda: check() == 0)
        assert daemon.terminate() == 0
        assert check() == 1
    finally:
        daemon.kill()
