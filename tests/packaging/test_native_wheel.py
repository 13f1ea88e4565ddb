"""What `pip install` of a clone brings: native code where a Rust tool chain is, else Python and a line that says so."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile

import pytest

from devstack import apt
from devstack.errors import Unavailable
from headrace import __version__

ROOT = Path(__file__).parents[2]
COST = "rows will be made by Python, which takes about five times the CPU: docs/install.md#native-code"
SHOWN = "headrace-native none: installed without native code, which takes about five times the CPU: docs/install.md"
needs_cargo = pytest.mark.skipif(not shutil.which("cargo"), reason="this machine has no Rust tool chain")


def built(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """pip makes the clone's wheel in a folder, and says what the build says."""
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=600)


def installed(wheel: Path, venv: Path) -> Path:
    """The Python of a fresh environment that has this wheel, and what it needs from this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-compile", wheel]
    subprocess.run(pip, check=True)
    (packages,) = venv.glob("lib/python3.*/site-packages")
    # Once native code was made for this environment too, it is left out.
    others = [one for one in Path(sysconfig.get_paths()["purelib"]).iterdir() if "headrace" not in one.name]
    for one in others:
        if not (packages / one.name).exists():
            (packages / one.name).symlink_to(one)
    return python


def messages(*python: str | Path, **env: str) -> tuple[str, str, int]:
    """What a Python makes of random binlogs by native code and alike without it: its machine, the file of the native
    code, messages."""
    code = "import platform; from headrace.native import find; from tests.native_differential import made; "
    code += "print(platform.machine(), find().module.__file__, made(30, seed=1))"
    done = subprocess.run(
        [*python, "-c", code], cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    machine, file, number = done.stdout.splitlines()[-1].split()
    return machine, file, int(number)


@needs_cargo
def test_the_wheel_of_a_clone_makes_rows_by_native_code_in_a_fresh_environment(tmp_path: Path) -> None:
    done = built(tmp_path, HEADRACE_NATIVE="")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    assert wheel.name == f"headrace-{__version__}-cp311-abi3-{platform}.whl"
    python = installed(wheel, tmp_path / "venv")
    shown = subprocess.run([python.with_name("headrace"), "version"], capture_output=True, text=True, timeout=60)
    assert f"\nheadrace-native {__version__}\n" in shown.stdout, shown.stdout + shown.stderr
    _, file, number = messages(python)
    assert (Path(file).is_relative_to(tmp_path), number > 500) == (True, True)


@pytest.mark.parametrize("cargo", [None, "#!/bin/sh\nexit 101\n"], ids=["no cargo", "cargo fails"])
def test_without_a_rust_tool_chain_python_is_installed_and_says_what_that_costs(
    cargo: str | None, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    if cargo is not None:
        (programs / "cargo").write_text(cargo)
        (programs / "cargo").chmod(0o755)
    done = built(tmp_path, PATH=str(programs), HEADRACE_NATIVE="")
    assert done.returncode == 0, done.stderr
    why = "no Rust tool chain" if cargo is None else "cargo can't build native code, and says why above"
    assert f"headrace: {why}; {COST}" in done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"headrace-{__version__}-py3-none-any.whl"
    assert "headrace_native.abi3.so" not in ZipFile(wheel).namelist()

    if cargo is None:
        python = installed(wheel, tmp_path / "venv")
        shown = subprocess.run([python.with_name("headrace"), "version"], capture_output=True, text=True, timeout=60)
        assert (shown.returncode, SHOWN in shown.stdout) == (0, True), shown.stdout + shown.stderr

    refused = built(tmp_path / "required", PATH=str(programs), HEADRACE_NATIVE="require")
    assert refused.returncode == 1
    assert f"headrace: {why}\n" in refused.stdout + refused.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What packaging/build-wheels makes, by the machine that it is for."""
    folder = tmp_path_factory.mktemp("wheels")
    done = subprocess.run([ROOT / "packaging/build-wheels", folder], capture_output=True, text=True, timeout=900)
    if "can't be had: rustup" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    start = f"headrace-{__version__}-cp311-abi3-manylinux_2_17_"
    assert {one.name.partition(start)[2] for one in folder.iterdir()} == {"x86_64.whl", "aarch64.whl"}
    return {one.stem.partition(start)[2]: one for one in folder.iterdir()}


@pytest.mark.long
@needs_cargo
@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_the_wheels_for_others_ask_for_no_newer_c_library_than_they_say(
    machine: str, number: int, wheels: dict[str, Path]
) -> None:
    code = ZipFile(wheels[machine]).read("headrace_native.abi3.so")
    assert (code[:4], int.from_bytes(code[18:20], "little")) == (b"\x7fELF", number)
    asked = {int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)", code)}
    assert max(asked) <= 17
    # Of the machine that built it.
    assert str(ROOT).encode() not in code


@pytest.mark.long
@needs_cargo
def test_the_wheel_for_this_machine_makes_rows_by_native_code(wheels: dict[str, Path], tmp_path: Path) -> None:
    if sysconfig.get_platform() != "linux-x86_64":
        pytest.skip("this machine is no amd64")
    _, file, number = messages(installed(wheels["x86_64"], tmp_path / "venv"))
    assert (Path(file).is_relative_to(tmp_path), number > 500) == (True, True)


@pytest.mark.long
@needs_cargo
def test_the_wheel_for_arm64_makes_the_same_messages_under_an_emulator(wheels: dict[str, Path], tmp_path: Path) -> None:
    try:
        emulator, root = tmp_path / "emulator", tmp_path / "root"
        files = apt.download(tmp_path / "apt", "qemu", "bookworm", apt.architecture(), ["qemu-user-static"], [])
        apt.unpack(files, emulator)
        files = apt.download(tmp_path / "arm64", "Python", "bookworm", "arm64", ["python3.11", "libstdc++6"], [])
        apt.unpack(files, root)
    except Unavailable as error:
        pytest.skip(f"not run on arm64: {error}")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--target", site]
    pip += ["--python-version", "3.11", "--platform", "manylinux_2_17_aarch64", "--platform", "manylinux_2_28_aarch64"]
    pip += ["--platform", "manylinux_2_24_aarch64", "--platform", "manylinux2014_aarch64"]
    subprocess.run([*pip, "--require-hashes", "-r", "requirements.lock"], cwd=ROOT, check=True, timeout=600)
    subprocess.run([*pip, wheels["aarch64"]], check=True, timeout=60)
    python = [emulator / "usr/bin/qemu-aarch64-static", "-L", root, root / "usr/bin/python3.11"]
    machine, file, number = messages(*python, PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1")
    assert (machine, Path(file).parent, number > 500) == ("aarch64", site, True)
