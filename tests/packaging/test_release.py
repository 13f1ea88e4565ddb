"""A release: made of a clone, complete, and installed into an empty environment, where it starts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from devstack.ports import free_port
from tests.support import eventually

ROOT = Path(__file__).parents[2]
VERSION = "0.1.1"
pytestmark = pytest.mark.long


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    # Of its own: native code of another version would be left in ours, and be taken for this one's.
    env = {**os.environ, "CARGO_TARGET_DIR": str(cwd.parent / "cargo-target")}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=1200)


def commit(clone: Path) -> None:
    git = ("git", "-c", "user.name=release", "-c", "user.email=release@example.com")
    assert run(*git, "commit", "-qam", "release", cwd=clone).returncode == 0


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone that is prepared for a release, with this one's downloads."""
    folder = tmp_path_factory.mktemp("release") / "headrace"
    assert run("git", "clone", "-q", ROOT, folder, cwd=ROOT).returncode == 0
    (folder / ".cache").symlink_to(ROOT / ".cache")
    done = run("scripts/release", "prepare", VERSION, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_version_is_written_everywhere_once(clone: Path) -> None:
    left = run(
        "git", "grep", "-nE", r"0\.1\.0(\"|$)", "--", ":!*.lock", ":!docs", ":!tests", ":!*.md", cwd=clone
    ).stdout
    assert left == ""
    assert f"## [{VERSION}] - " in (clone / "CHANGELOG.md").read_text()
    again = run("scripts/release", "prepare", VERSION, cwd=clone)
    assert (again.returncode, f"CHANGELOG.md has {VERSION} already" in again.stderr) == (2, True)


def test_what_is_not_committed_is_not_released(clone: Path) -> None:
    (clone / "stray").touch()
    try:
        done = run("scripts/release", "build", cwd=clone)
        assert (done.returncode, "changes that are not committed" in done.stderr) == (2, True)
    finally:
        (clone / "stray").unlink()


@pytest.mark.skipif(not shutil.which("cargo"), reason="this machine has no Rust tool chain")
def test_the_files_of_a_release_are_complete_and_what_they_install_starts(clone: Path, tmp_path: Path) -> None:
    commit(clone)
    done = run("scripts/release", "build", cwd=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = clone / "dist" / VERSION
    names = {path.name for path in folder.iterdir()}
    (wheel,) = folder.glob("*-manylinux*_x86_64.whl")
    assert {f"headrace-{VERSION}.tar.gz", f"headrace-{VERSION}-context.tar.gz", f"CHANGES-{VERSION}.md"} <= names
    assert list(folder.glob("*.deb"))
    with tarfile.open(folder / f"headrace-{VERSION}.tar.gz") as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert packed - {"PKG-INFO"} <= set(run("git", "ls-files", cwd=clone).stdout.splitlines())
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "SHA256SUMS"
    }
    bill = json.loads((folder / f"headrace-{VERSION}.cdx.json").read_text())
    assert {"aiokafka", "kazoo", "pyo3"} <= {one["name"] for one in bill["components"] if one["hashes"]}

    venv = tmp_path / "venv"
    assert run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path).returncode == 0
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin/python", "install", "-q")
    done = run(*pip, wheel, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    version = run(venv / "bin/headrace", "version", cwd=tmp_path).stdout
    assert VERSION in version
    port = free_port()
    (tmp_path / "headrace.toml").write_text(f'[http]\nlisten = "127.0.0.1:{port}"\n')
    (tmp_path / "destinations").mkdir()
    source = f'[source]\nhost = "127.0.0.1"\nport = {free_port()}\nuser = "canal"\npassword = "p"\n'
    (tmp_path / "destinations/shop.toml").write_text(f'{source}[sink]\ntype = "jsonl"\npath = "-"\n')
    daemon = subprocess.Popen(
        [venv / "bin/headrace", "run", "--config", tmp_path / "headrace.toml"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def status() -> int:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return 200
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    try:
        eventually(lambda: status() == 503)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(20) == 0
    finally:
        daemon.kill()
        daemon.wait()
