"""The Debian package: built without root, installed into a folder, and run from there with Debian's own Python."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace import __version__

ROOT = Path(__file__).parents[2]
DESTINATION = """
[source]
host = "127.0.0.1"
user = "canal"
password = "${credential:shop-password}"
[route]
topic = "shop"
[sink]
type = "null"
"""
PYTHON = Path("/usr/bin/python3.11")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists() or not shutil.which("dpkg-deb"), reason="this is no Debian 12"),
    pytest.mark.skipif(not shutil.which("cargo"), reason="this machine has no Rust tool chain"),
]


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deb")
    done = run(ROOT / "packaging/build-deb", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def files(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package's files, as root's own machine would have them."""
    folder = tmp_path_factory.mktemp("files")
    done = run("dpkg-deb", "-x", package, folder)
    assert done.returncode == 0, done.stderr
    return folder


def field(package: Path, name: str) -> str:
    return run("dpkg-deb", "-f", package, name).stdout.strip()


def headrace(root: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The program below another root: its first line names a path of the real one."""
    return run(root / "opt/headrace/bin/python", root / "opt/headrace/bin/headrace", *words)


def test_the_package_says_what_it_is_and_needs(package: Path) -> None:
    assert (field(package, "Package"), field(package, "Version")) == ("headrace", __version__)
    assert "python3.11" in field(package, "Depends").split(", ")
    assert int(field(package, "Installed-Size")) > 10_000
    assert run("dpkg-deb", "-I", package, "conffiles").stdout == "/etc/headrace/headrace.toml\n"


def test_a_package_without_native_code_has_to_be_asked_for(tmp_path: Path) -> None:
    done = run(ROOT / "packaging/build-deb", tmp_path, PATH="/usr/bin:/bin")
    assert done.returncode == 2
    assert "with HEADRACE_NATIVE=off in the environment the package has no native code" in done.stderr
    assert not list(tmp_path.iterdir())


def test_all_files_are_root_s_and_nobody_else_may_write_them(package: Path) -> None:
    for line in run("dpkg-deb", "-c", package).stdout.splitlines():
        mode, owner = line.split()[:2]
        assert owner == "root/root", line
        assert mode[0] == "l" or (mode[5], mode[8]) == ("-", "-"), line


def test_units_user_configuration_and_commands_are_where_they_belong(files: Path) -> None:
    for name in ("headrace.service", "headrace@.service", "headrace-consume.service"):
        installed = files / "lib/systemd/system" / name
        assert installed.read_bytes() == (ROOT / "systemd" / name).read_bytes()
        (start,) = re.findall(r"^ExecStart=(\S+)", installed.read_text(), re.MULTILINE)
        program = files / start.lstrip("/")
        assert program.stat().st_mode & 0o111
        assert "/opt/headrace/bin/python" in program.read_text().partition("import")[0]
        assert (files / "usr/bin" / program.name).resolve() == program
    user = files / "lib/systemd/system/headrace-user@.service"
    assert user.read_bytes() == (ROOT / "systemd/headrace-user@.service").read_bytes()
    for kind in ("sysusers", "tmpfiles"):
        installed = files / f"usr/lib/{kind}.d/headrace.conf"
        assert installed.read_bytes() == (ROOT / f"systemd/headrace.{kind}.conf").read_bytes()
    assert (files / "usr/share/doc/headrace/examples/destinations/shop.toml").is_file()


@pytest.mark.parametrize("unit", ["headrace.service", "headrace@shop.service", "headrace-consume.service"])
def test_systemd_accepts_the_units_as_they_are_installed(unit: str, files: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("this machine has no systemd-analyze")
    (files / "bin").mkdir(exist_ok=True)
    shutil.copy("/bin/kill", files / "bin")  # of another package
    # Nothing is asked of the units that ours name, which are of other packages too.
    done = run("systemd-analyze", "verify", "--recursive-errors=no", f"--root={files}", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_was_built_keeps_no_path_of_the_build(files: Path) -> None:
    found = run("grep", "-rlF", "-e", str(ROOT), "-e", "/tmp/tmp.", files / "opt", files / "etc")
    assert (found.returncode, found.stdout) == (1, "")


def test_the_program_runs_with_what_the_package_brings_along(files: Path) -> None:
    shown = headrace(files, "version")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"headrace {__version__}\nPython 3.11.")
    assert f"\nheadrace-native {__version__}\n" in shown.stdout
    # Every client, and what is written in C.
    for name in ("aiomysql", "aiokafka", "aio-pika", "kazoo", "rocketmq-python-client", "uvloop"):
        assert re.search(rf"^{name} \d", shown.stdout, re.MULTILINE), name
    names = "headrace.cli.wiring, headrace_consume.cli, aiokafka.record._crecords, grpc, orjson, regex, uvloop, redis"
    done = run(files / "opt/headrace/bin/python", "-I", "-W", "ignore", "-c", f"import {names}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_start_compiles_nothing(files: Path) -> None:
    compiled = {one: one.stat().st_mtime_ns for one in (files / "opt").rglob("*.pyc")}
    assert headrace(files, "version").returncode == 0
    assert {one: one.stat().st_mtime_ns for one in (files / "opt").rglob("*.pyc")} == compiled


def test_the_installed_configuration_is_right_once_it_has_a_destination(files: Path, tmp_path: Path) -> None:
    etc = tmp_path / "headrace"
    shutil.copytree(files / "etc/headrace", etc)
    main = etc / "headrace.toml"
    reported = headrace(files, "config", "check", "--config", main)
    assert (reported.returncode, "no destination" in reported.stderr) == (2, True)
    (etc / "destinations/shop.toml").write_text(DESTINATION)
    (etc / "secrets/shop-password").write_text("secret-4711\n")
    done = headrace(files, "config", "check", "--config", main)
    assert (done.returncode, done.stdout) == (0, f"{main}: the configuration is right; destinations: shop\n")


def empty_root(root: Path) -> tuple[str, ...]:
    """Makes the folders that dpkg needs; its command for them. Nothing else is installed there, and its scripts use the
    programs of this machine."""
    for folder in ("etc", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"):
        (root / folder).mkdir(parents=True)
    for file in ("status", "available"):
        (root / "var/lib/dpkg" / file).touch()
    return ("dpkg", f"--root={root}", "--force-depends", "--force-script-chrootless", "--force-confold")


def enabled(root: Path) -> dict[str, str]:
    """What systemd finds in /etc: names of links below it, and where they lead."""
    etc = root / "etc/systemd/system"
    return {str(one.relative_to(etc)): os.readlink(one) for one in etc.rglob("*") if one.is_symlink()}


@pytest.mark.skipif(os.geteuid() != 0, reason="dpkg gives files to root")
def test_units_that_were_enabled_are_not_after_the_package_is_purged_and_are_again_after_a_mere_removal(
    package: Path, tmp_path: Path
) -> None:
    if not shutil.which("systemctl") or not shutil.which("deb-systemd-helper"):
        pytest.skip("this machine has no systemd")
    root = tmp_path / "root"
    dpkg = empty_root(root)
    assert (done := run(*dpkg, "-i", package)).returncode == 0, done.stderr
    assert enabled(root) == {}, "an installation enables nothing"
    wants = "multi-user.target.wants"
    units = ("headrace.service", "headrace@shop.service", "headrace-consume.service")
    assert (done := run("systemctl", f"--root={root}", "enable", *units)).returncode == 0, done.stderr
    before = enabled(root)
    assert before.keys() == {f"{wants}/{unit}" for unit in units}
    assert run(*dpkg, "-i", package).returncode == 0
    assert enabled(root) == before, "an upgrade changes nothing"

    assert (done := run(*dpkg, "--remove", "headrace")).returncode == 0, done.stderr
    after = enabled(root)
    assert {name: to for name, to in after.items() if to == "/dev/null"}.keys() == {
        "headrace.service",
        "headrace@.service",
        "headrace-consume.service",
    }
    assert run(*dpkg, "-i", package).returncode == 0
    assert enabled(root) == before

    assert (done := run(*dpkg, "--purge", "headrace")).returncode == 0, done.stderr
    assert enabled(root) == {}
    assert not list((root / "var/lib/systemd").rglob("*headrace*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="dpkg gives files to root")
def test_dpkg_installs_it_keeps_what_an_operator_changed_and_removes_it(package: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    dpkg = empty_root(root)
    assert (done := run(*dpkg, "-i", package)).returncode == 0, done.stderr
    (user,) = [
        line.split(":") for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("headrace")
    ]
    secrets = (root / "etc/headrace/secrets").stat()
    assert (secrets.st_uid, secrets.st_gid, secrets.st_mode & 0o777) == (0, int(user[3]), 0o750)
    assert (root / "var/lib/headrace").stat().st_uid == int(user[2])

    main = root / "etc/headrace/headrace.toml"
    main.write_text(changed := main.read_text() + "# changed\n")
    (root / "etc/headrace/destinations/shop.toml").write_text(DESTINATION)
    (root / "etc/headrace/secrets/shop-password").write_text("secret-4711\n")
    assert run(*dpkg, "-i", package).returncode == 0
    assert main.read_text() == changed
    assert headrace(root, "config", "check", "--config", main).returncode == 0

    assert (done := run(*dpkg, "--purge", "headrace")).returncode == 0, done.stderr
    assert not (root / "opt/headrace").exists()
    assert not main.exists()
    assert (root / "etc/headrace/destinations/shop.toml").exists(), "what an operator wrote stays"
    assert (root / "var/lib/headrace").is_dir(), "positions stay"
