"""The wheel: it has the programs, and the examples and units for whoever installs it."""

import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("headrace-*.whl")
    return ZipFile(made)


def test_every_example_and_unit_is_in_the_wheel_as_it_is_in_the_source(wheel: ZipFile) -> None:
    shared = {
        name.partition(".data/data/share/headrace/")[2]: wheel.read(name)
        for name in wheel.namelist()
        if ".data/" in name
    }
    sources = [file for folder in ("config", "systemd") for file in (ROOT / folder).rglob("*") if file.is_file()]
    assert shared == {str(file.relative_to(ROOT)): file.read_bytes() for file in sources}
    assert {"config/headrace.toml", "systemd/headrace.service", "systemd/headrace@.service"} <= shared.keys()


def test_all_of_the_packages_and_the_files_of_the_status_page_are_in_the_wheel(wheel: ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = set(wheel.namelist())
    for package in map(Path, project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]):
        files = [one for one in (ROOT / package).rglob("*") if one.is_file() and "__pycache__" not in one.parts]
        assert {str(one.relative_to(ROOT / package.parent)) for one in files} <= names
    assert "headrace/http/static/page.js" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not {name.partition("/")[0] for name in names} & {"tests", "devstack", "demo", "packaging"}
