"""What is wrong with adapters of other packages is one error, which names the key and the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import main as commands
from headrace.cli.wiring import ADAPTERS
from headrace.errors import ConfigError
from headrace.ports.registry import Registry
from headrace.settings.load import Loader

Install = Callable[..., None]
SOURCE = '[source]\nhost = "h"\nuser = "u"\npassword = ""\n'
TOY = "tests.toys.sink:ToySinkAdapter"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with entry points, and modules."""

    def install(name: str, entries: dict[str, str], **modules: str) -> None:
        site = tmp_path / name
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[headrace.adapters]\n{lines}")
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(site)

    return install


def problems(folder: Path, destination: str, main: str = "") -> list[str]:
    (folder / "destinations").mkdir()
    (folder / "destinations" / "shop.toml").write_text(destination)
    (folder / "headrace.toml").write_text(main)
    with pytest.raises(ConfigError) as caught:
        Loader(Registry(ADAPTERS.adapters, outside=True), {}).load(folder / "headrace.toml")
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("destination", "problem"),
    [
        ('[sink]\ntype = "shelf"\n', "sink.type: should be one of kafka, rabbitmq, rocketmq, canal, jsonl, null, toy"),
        ('[message]\nformat = "x"\n[sink]\ntype = "null"\n', "message.format: should be one of canal, "),
        ('[state]\nstore = "x"\n[sink]\ntype = "null"\n', "state.store: should be one of auto, sqlite, "),
    ],
)
def test_a_name_that_nobody_has_lists_those_that_there_are_and_how_to_get_another(
    install: Install, tmp_path: Path, destination: str, problem: str
) -> None:
    install("headrace-toys", {"sink.toy": TOY})
    (found,) = problems(tmp_path, SOURCE + destination)
    assert found.startswith(f"destinations/shop.toml: {problem}")
    assert found.endswith("; others come with packages of their own: pip install PACKAGE (docs/adapters.md)")


BROKEN = "import a_module_that_nobody_has\n"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("broken:Adapter", "can't be loaded (ModuleNotFoundError: No module named 'a_module_that_nobody_has')"),
        ("plain:Nothing", "can't be loaded (AttributeError: module 'plain' has no attribute 'Nothing')"),
        ("plain:Adapter", "can't be loaded (ValueError: not today)"),
        ("tests.toys.format:ToyFormatAdapter", "is no SinkAdapter"),
    ],
)
def test_a_package_that_can_t_be_used_is_named(install: Install, tmp_path: Path, value: str, why: str) -> None:
    plain = "def Adapter():\n    raise ValueError('not today')\n"
    install("headrace-toys", {"sink.toy": value}, broken=BROKEN, plain=plain)
    assert problems(tmp_path, SOURCE + '[sink]\ntype = "toy"\n') == [
        f"destinations/shop.toml: sink.type: sink 'toy' of headrace-toys 1.0 can't be used: {value} {why}"
        " -> install a version of that package which fits, and what it needs"
    ]


BARE = """
from headrace.ports.sink import SinkAdapter
from headrace.settings.adapters import SinkSettings
from pydantic import model_validator

class Bare(SinkAdapter):
    def sink(self, name, settings, context):
        raise NotImplementedError

class Section(SinkSettings):
    @property
    def capabilities(self):
        raise NotImplementedError

    @model_validator(mode="after")
    def _check(self):
        return {}["shelf"]

class Strict(Bare):
    section = Section
"""


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "Bare",
            "sink.type: sink 'toy' of headrace-toys 1.0 can't be used: the section of bare:Bare is no SinkSettings",
        ),
        ("Strict", "sink: can't be read by bare.Section (KeyError: 'shelf')"),
    ],
)
def test_a_section_that_can_t_be_used_is_named(install: Install, tmp_path: Path, name: str, problem: str) -> None:
    install("headrace-toys", {"sink.toy": f"bare:{name}"}, bare=BARE)
    (found,) = problems(tmp_path, SOURCE + '[sink]\ntype = "toy"\n')
    assert found.startswith(f"destinations/shop.toml: {problem}")


def test_a_package_can_t_take_a_section_that_is_ours(install: Install, tmp_path: Path) -> None:
    install("headrace-toys", {"cluster.daemon": "tests.toys.cluster:ToyClusterAdapter"})
    assert problems(tmp_path, SOURCE + '[sink]\ntype = "null"\n', "[daemon]\nroom = 1\n") == [
        "headrace.toml: daemon.room: unknown key"
    ]


def test_a_broken_package_that_is_not_named_harms_nobody(install: Install, tmp_path: Path) -> None:
    install("headrace-toys", {"sink.toy": "broken:Adapter"}, broken=BROKEN)
    (found,) = problems(tmp_path, SOURCE + '[sink]\ntype = "null"\nshelf = "s"\n')
    assert found == "destinations/shop.toml: sink.shelf: unknown key"
    assert "broken" not in sys.modules


@pytest.mark.parametrize(("other", "owners"), [("sink.toy", "headrace-toys 1.0 and more 1.0"), ("sink.null", "")])
def test_two_packages_with_one_name_are_one_error(
    install: Install, tmp_path: Path, other: str, owners: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = other.removeprefix("sink.")
    install("headrace-toys", {"sink.toy": TOY})
    install("more", {other: TOY})
    (found,) = problems(tmp_path, SOURCE + f'[sink]\ntype = "{name}"\n')
    assert found.startswith(f"destinations/shop.toml: sink.type: there are several of sink '{name}': ")
    for owner in owners.split(" and ") if owners else ("headrace", "more 1.0"):
        assert owner in found
    assert found.endswith("-> leave one of these packages, and take the others out: pip uninstall PACKAGE")
    assert commands.main(["version"]) == 0
    shown = capsys.readouterr().out
    assert "more 1.0" in next(line for line in shown.splitlines() if line.startswith(f"{other} "))


def test_a_lock_service_of_a_package_has_its_section(install: Install, tmp_path: Path) -> None:
    install("headrace-toys", {"cluster.toy": "tests.toys.cluster:ToyClusterAdapter"})
    assert problems(tmp_path, SOURCE + '[sink]\ntype = "null"\n', "[toy]\n") == ["headrace.toml: toy.room: is missing"]


def test_a_section_that_nobody_has_lists_the_lock_services(install: Install, tmp_path: Path) -> None:
    install("headrace-toys", {"cluster.toy": "tests.toys.cluster:ToyClusterAdapter"})
    (found,) = problems(tmp_path, SOURCE + '[sink]\ntype = "null"\n', "[consul]\nhosts = 1\n")
    assert found.startswith("headrace.toml: consul: unknown section; lock services are zookeeper, ")
    assert "toy; others come with packages of their own: pip install PACKAGE" in found


def test_a_lock_service_that_can_t_be_used_is_named_by_its_section(install: Install, tmp_path: Path) -> None:
    install("headrace-toys", {"cluster.toy": "broken:Adapter"}, broken=BROKEN)
    (found,) = problems(tmp_path, SOURCE + '[sink]\ntype = "null"\n', "[toy]\n")
    assert found.startswith("headrace.toml: toy: cluster 'toy' of headrace-toys 1.0 can't be used: broken:Adapter")


def test_a_state_store_of_a_package_has_keys_of_its_own(install: Install, tmp_path: Path) -> None:
    install("headrace-toys", {"state.cellar": "tests.toys.state:ToyStateAdapter"})
    state = '[state]\nstore = "cellar"\n'
    assert problems(tmp_path, SOURCE + '[sink]\ntype = "null"\n' + state, state + "cellar = 1\n") == [
        "headrace.toml: state.file: is missing",
        "headrace.toml: state.cellar: unknown key",
        "destinations/shop.toml: state.file: is missing",
    ]
