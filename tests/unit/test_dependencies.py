"""What each part of the distribution imports is what pyproject declares for it; a missing extra is one sentence."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from headrace_spark.session.pyspark_internals import KNOWN_VERSIONS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PARTS = {
    "common/headrace_common": [],
    "daemon/headrace": [],
    "documents/headrace_documents": ["spark"],
    "spark_consumer/headrace_spark": ["spark"],
    "rabbitmq_consumer/headrace_consume": ["consume"],
}
"""Each part and the extras that it is installed with."""
OPTIONAL = {
    "daemon/headrace/adapters/rabbitmq/": "rabbitmq",
    "common/headrace_common/rabbitmq.py": "rabbitmq",
    "daemon/headrace/adapters/rocketmq/": "rocketmq",
    "daemon/headrace/adapters/etcd/": "etcd",
    "daemon/headrace/cli/main.py": "uvloop",
    "daemon/headrace/mysql/archive/object_store.py": "object-store",
    "rabbitmq_consumer/headrace_consume/seen_redis.py": "redis",
}
"""Where a further extra is asked for when it is needed."""
DISTRIBUTIONS = {**packages_distributions(), "google": ["protobuf"]}  # several have parts of this package
"""By the name that is imported."""
NOT_IMPORTED = {"tzdata": "zoneinfo reads it"}


def declared(*extras: str) -> set[str]:
    """Names of distributions: those always installed, and those of extras."""
    lines = PROJECT["dependencies"] + [one for extra in extras for one in PROJECT["optional-dependencies"][extra]]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and names of the distributions that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names:
            if name not in ("headrace", "headrace_common", "headrace_documents", "headrace_spark", "headrace_consume"):
                yield node.lineno, canonicalize_name(DISTRIBUTIONS.get(name, [name])[0])


@functools.cache
def all_imports() -> list[tuple[str, str, int, str]]:
    """Part, file, line and distribution of each import."""
    return [
        (part, str(path.relative_to(ROOT)), line, name)
        for part in PARTS
        for path in sorted((ROOT / part).rglob("*.py"))
        for line, name in imports(path)
    ]


def test_each_import_is_declared_for_the_part_that_imports_it() -> None:
    missing = []
    for part, file, line, name in all_imports():
        further = [extra for prefix, extra in OPTIONAL.items() if file.startswith(prefix)]
        if name not in declared(*PARTS[part], *further):
            missing.append(f"{file}:{line} imports {name}")
    assert missing == []


def test_what_both_consumers_share_is_declared_for_both() -> None:
    shared = {name for part, _, _, name in all_imports() if part.endswith("documents")}
    assert shared <= declared("spark")
    assert shared <= declared("consume")


def test_everything_declared_is_imported_or_has_a_reason() -> None:
    extras = [name for name in PROJECT["optional-dependencies"] if name != "dev"]
    used = {name for _, _, _, name in all_imports()}
    assert declared(*extras) - used == set(NOT_IMPORTED)


OURS = ("tests", "devstack", "demo", "benchmarks", "sim")


def test_what_tests_and_tools_import_is_declared_for_development() -> None:
    extras = [name for name in PROJECT["optional-dependencies"] if name != "dev"]
    known = declared("dev", *extras) | {"headrace"}
    missing = []
    for folder in OURS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            missing += [
                f"{path.relative_to(ROOT)}:{line} imports {name}"
                for line, name in imports(path)
                if name not in known and name not in OURS
            ]
    assert missing == []


def test_every_dependency_has_a_lowest_version() -> None:
    lines = PROJECT["dependencies"] + [one for some in PROJECT["optional-dependencies"].values() for one in some]
    for line in lines:
        requirement = Requirement(line)
        ends = {part.operator for part in requirement.specifier}
        assert requirement.name == "headrace" or ends & {"==", ">="}, line


def test_an_extra_takes_no_later_minor_version_than_the_one_that_the_tests_run_with() -> None:
    versions, open_ended = locked(), []
    extras = [name for name in PROJECT["optional-dependencies"] if name != "dev"]
    for line in {one for extra in extras for one in PROJECT["optional-dependencies"][extra]}:
        requirement = Requirement(line)
        run = Version(versions[canonicalize_name(requirement.name)])
        if requirement.specifier.contains(f"{run.major}.{run.minor + 1}"):
            open_ended.append(f"{line}, and the lock file has {run}")
    assert open_ended == []


def test_the_extra_spark_takes_no_pyspark_that_has_not_run() -> None:
    (line,) = [one for one in PROJECT["optional-dependencies"]["spark"] if one.startswith("pyspark")]
    allowed, known = Requirement(line).specifier, sorted(map(Version, KNOWN_VERSIONS["pyspark"]))
    assert all(allowed.contains(one) for one in known)
    assert not allowed.contains(f"{known[-1].major}.{known[-1].minor}.{known[-1].micro + 1}")


def run_without(package: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python that lacks a package."""
    hidden = f"import sys; sys.modules[{package!r}] = None; {code}"
    return subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("package", "module", "command", "extra"),
    [
        ("aio_pika", "headrace_consume", "headrace-consume", "consume"),
        ("elastic_transport", "headrace_consume", "headrace-consume", "consume"),
        ("elastic_transport", "headrace_spark", "headrace-spark", "spark"),
        ("pyspark", "headrace_spark", "headrace-spark", "spark"),
    ],
)
def test_a_consumer_without_its_extra_says_what_to_install(package: str, module: str, command: str, extra: str) -> None:
    done = run_without(package, f"from {module}.cli import main; sys.exit(main(['--help']))")
    assert done.stderr == f"{command} needs the Python package {package}: pip install 'headrace[{extra}]'\n"
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("package", "sink", "keys", "extra"),
    [
        ("aio_pika", "RabbitMq", "dict(type='rabbitmq', hosts='127.0.0.1:1', user='u', password='p')", "rabbitmq"),
        ("aiormq", "RabbitMq", "dict(type='rabbitmq', hosts='127.0.0.1:1', user='u', password='p')", "rabbitmq"),
        ("rocketmq", "RocketMq", "dict(type='rocketmq', hosts='127.0.0.1:1')", "rocketmq"),
    ],
)
def test_a_sink_without_its_extra_says_what_to_install(package: str, sink: str, keys: str, extra: str) -> None:
    code = f"""
import asyncio
from headrace.adapters.{extra}.settings import {sink}SinkSettings
from headrace.adapters.{extra}.sink import {sink}Sink
from headrace.errors import SinkRejected
from headrace.lease import Lease
async def reach(): pass
async def main():
    sink = {sink}Sink({sink}SinkSettings.model_validate({keys}), Lease())
    sink._reach = reach
    try:
        await sink.start()
    except SinkRejected as error:
        print(error)
asyncio.run(main())
"""
    done = run_without(package, f"exec({code!r})")
    assert done.stderr == ""
    assert re.search(rf"needs {package}, which is not installed -> pip install 'headrace\[{extra}\]'", done.stdout)


@pytest.mark.parametrize("package", ["aetcd", "grpc"])
def test_etcd_without_its_extra_says_what_to_install(package: str) -> None:
    code = """
from headrace.adapters.etcd.adapter import EtcdAdapter
from headrace.errors import LockServiceError
try:
    EtcdAdapter().service(EtcdAdapter.section(endpoints="127.0.0.1:1"))
except LockServiceError as error:
    print(error)
"""
    done = run_without(package, f"exec({code!r})")
    assert f"not installed ({package}) -> pip install 'headrace[etcd]'" in done.stdout
    assert done.stderr == ""


def test_an_object_store_without_its_extra_says_what_to_install() -> None:
    code = """
from headrace.errors import ArchiveError
from headrace.mysql.archive.archive import Archive
from headrace.settings.archive import ArchiveSettings
try:
    Archive.of(ArchiveSettings(url="s3://bucket/shop"))
except ArchiveError as error:
    print(error)
"""
    done = run_without("obstore", f"exec({code!r})")
    assert "not installed (obstore) -> pip install 'headrace[object-store]'" in done.stdout
    assert done.stderr == ""


def test_uvloop_that_is_wanted_and_missing_is_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    (tmp_path / "destinations").mkdir()
    config.write_text('[daemon]\nevent_loop = "uvloop"\n')
    (tmp_path / "destinations" / "a.toml").write_text(
        '[source]\nhost = "h"\nuser = "u"\npassword = "p"\n[route]\ntopic = "t"\n[sink]\ntype = "null"\n'
    )
    arguments = ["check", "--config", str(config)]
    done = run_without("uvloop", f"from headrace.cli.main import main; sys.exit(main({arguments!r}))")
    assert "event_loop is uvloop, which is not installed" in done.stderr
    assert "headrace[uvloop]" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_redis_that_is_missing_is_one_sentence() -> None:
    code = """
from types import SimpleNamespace
from headrace_consume.duplicates import make_duplicates
from headrace_consume.seen import DuplicatesError
settings = SimpleNamespace(duplicates=SimpleNamespace(store="redis"), rabbitmq=SimpleNamespace(queue="q"))
try:
    make_duplicates(settings)
except DuplicatesError as error:
    print(error)
"""
    done = run_without("redis", f"exec({code!r})")
    assert "needs the Python package redis: pip install 'headrace[redis]'" in done.stdout
    assert done.stderr == ""


def test_the_installed_distribution_is_this_pyproject() -> None:
    assert distribution("headrace").version == PROJECT["version"]


LOCKS = ("requirements-dev.lock", "requirements.lock", "requirements-build.lock", "requirements-wheels.lock")


def locked(name: str = "requirements-dev.lock") -> dict[str, str]:
    """Names and versions of a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+) ", (ROOT / name).read_text(), re.MULTILINE))


def test_the_lock_file_has_everything_that_development_needs_within_its_range() -> None:
    versions, wrong = locked(), []
    for line in PROJECT["dependencies"] + [o for some in PROJECT["optional-dependencies"].values() for o in some]:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name != "headrace" and not requirement.specifier.contains(versions.get(name, "0")):
            wrong.append(f"{line}, but the lock file has {versions.get(name)}: run scripts/lock")
    assert wrong == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_has_a_version_and_hashes_for_each_name_and_nothing_else(name: str) -> None:
    first, _, pins = (ROOT / name).read_text().partition("\n")
    assert first == "# Written by scripts/lock."
    one = r"[a-z0-9-]+==[0-9a-z.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"({one})+", pins)
    names = list(locked(name))
    assert names == sorted(set(names))


@pytest.mark.parametrize("name", LOCKS[1:])
def test_what_is_shipped_and_what_builds_has_the_versions_that_the_tests_run_with(name: str) -> None:
    tested = locked()
    assert {
        one: (version, tested[one]) for one, version in locked(name).items() if tested.get(one, version) != version
    } == {}


def test_the_lock_file_of_the_package_has_all_that_it_needs_and_no_spark() -> None:
    names = locked("requirements.lock").keys()
    assert declared("consume", "rabbitmq", "redis", "rocketmq", "uvloop") <= names
    assert names <= locked().keys() - {"pyspark", "py4j", "pytest"}
    assert locked("requirements-build.lock").keys() >= {"hatchling", "setuptools"}


@pytest.mark.parametrize(
    "file", ["scripts/lib.sh", "packaging/build-deb", "packaging/build-wheels", "packaging/Containerfile"]
)
def test_what_is_installed_for_tests_package_and_container_is_checked_by_its_hash(file: str) -> None:
    text = re.sub(r"\\\n *", "", (ROOT / file).read_text())
    asked = [line for line in re.split(r"\n|&&", text) if re.search(r"-r \S*requirements", line)]
    assert asked
    assert all("--require-hashes" in line for line in asked)
    # Everything else is a file of this machine, and pip fetches nothing beside it.
    others = [line for line in re.split(r"\n|&&", text) if re.search(r"(-m|RUN|^) *pip .*(install|wheel) ", line)]
    assert [line for line in others if not re.search(r"--no-deps|--no-index|--require-hashes", line)] == []


def test_the_base_images_of_the_container_are_arguments_of_its_build() -> None:
    lines = (ROOT / "packaging/Containerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith(("ARG", "FROM"))] == [
        "ARG BASE",
        "ARG RUST",
        "FROM ${RUST} AS native",
        "FROM ${BASE} AS build",
        "FROM ${BASE}",
    ]
