"""The systemd units: accepted by systemd itself where it is installed, and by our own reading of them everywhere."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_common.files import secrets_beside
from headrace_common.references import UNIT_PREFIX
from headrace_spark.query.watching import FED_FOR
from headrace_spark.session.ending import AFTER_DRAIN, STOP_LIMIT
from headrace_spark.settings import SparkSettings

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNIT = SYSTEMD / "headrace.service"
INSTANCE = SYSTEMD / "headrace@.service"
USER_OF_INSTANCE = SYSTEMD / "headrace-user@.service"
CONSUME = SYSTEMD / "headrace-consume.service"
SPARK = SYSTEMD / "headrace-spark.service"
UNITS = (UNIT, INSTANCE, CONSUME, SPARK)
USERS = {"DynamicUser", "User", "Group"}
"""A consumer is no user of the system: no command of an operator needs its files."""


def keys(section: str, unit: Path = UNIT) -> dict[str, list[str]]:
    """The section's keys with their values, in order; systemd allows a key many times."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in unit.read_text().splitlines():
        if re.match(r"\s*([#;]|$)", line):
            continue
        if header := re.fullmatch(r"\[(\w+)\]", line):
            current = header[1]
            continue
        key, equals, value = line.partition("=")
        assert equals, line
        assert re.fullmatch(r"[A-Z][A-Za-z]+", key), line
        if current == section:
            found.setdefault(key, []).append(value)
    return found


@pytest.fixture(params=(*UNITS, USER_OF_INSTANCE), ids=lambda unit: unit.name)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit as it is shipped, but for its program: that must exist, so one that does takes its place."""
    unit: Path = request.param
    text = re.sub(r"/opt/headrace/bin/headrace[a-z-]*", sys.executable, unit.read_text())
    made = tmp_path / unit.name.replace("@", "@shop")
    made.write_text(text)
    if unit == INSTANCE:
        shutil.copy(USER_OF_INSTANCE, tmp_path)
    return made


def systemd_analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("this machine has no systemd-analyze: the other tests read the units")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60)


def test_systemd_accepts_it(installed: Path) -> None:
    done = systemd_analyze("verify", installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_leaves_little_open(installed: Path) -> None:
    if installed.name.startswith("headrace-user@"):
        return  # it writes /etc/passwd, and runs for a moment
    # In tenths: what is left is the network, local sockets, the root folder and the clock's device.
    done = systemd_analyze("security", "--offline=yes", "--threshold=14", "--no-pager", installed)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_each_consumer_and_daemon_notifies_systemd_when_it_is_ready_as_far_as_it_can() -> None:
    assert [keys("Service", unit)["Type"] for unit in UNITS] == [["notify"], ["notify"], ["exec"], ["notify"]]


def test_it_is_hardened_and_gives_the_drain_its_time() -> None:
    service = keys("Service")
    assert service["ExecStart"] == ["/opt/headrace/bin/headrace run --config /etc/headrace/headrace.toml"]
    assert service["Type"] == ["notify"]
    assert service["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert service["Restart"] == ["always"]
    assert service["EnvironmentFile"] == ["-/etc/headrace/headrace.env"]
    assert service["RestrictAddressFamilies"] == ["AF_INET AF_INET6 AF_UNIX"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["StateDirectory"] == ["headrace"]
    assert service["LimitCORE"] == ["0"]
    # A dynamic user's state lies where no other user may go, and commands run as the same user.
    assert (service["User"], service.get("DynamicUser")) == (["headrace"], None)
    assert service["SystemCallFilter"][0] == "@system-service"
    assert int(service["WatchdogSec"][0]) == 30
    assert int(service["TimeoutStopSec"][0]) >= 10 + 3 + 5
    for key in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "PrivateUsers", "ProtectKernelModules"):
        assert service[key] == ["yes"], key
    assert keys("Install")["WantedBy"] == ["multi-user.target"]


def test_an_instance_is_the_same_service_with_a_configuration_and_a_state_of_its_own() -> None:
    for section in ("Unit", "Service", "Install"):
        one, instance = keys(section), keys(section, INSTANCE)
        expected = {
            "Description": ["headrace: row changes out of MySQL (%i)"],
            "StateDirectory": ["headrace-%i"],
            "ConfigurationDirectory": ["headrace/%i"],
            "WorkingDirectory": ["/var/lib/headrace-%i"],
            "User": ["headrace-%i"],
            "Group": ["headrace-%i"],
            "After": ["network-online.target", "headrace-user@%i.service"],
        }
        for key, values in one.items():
            moved = [value.replace("/etc/headrace/", "/etc/headrace/%i/") for value in values]
            assert instance.pop(key) == expected.get(key, moved), key
        assert instance == ({"Requires": ["headrace-user@%i.service"]} if section == "Unit" else {})


def test_instances_have_users_of_their_own_that_are_made_before_they_start(tmp_path: Path) -> None:
    if not shutil.which("systemd-sysusers") or os.geteuid():
        pytest.skip("only root makes users, and only systemd by these lines")
    (tmp_path / "etc").mkdir()
    (start,) = keys("Service", USER_OF_INSTANCE)["ExecStart"]
    for instance in ("shop", "other", "shop"):
        program, *words = shlex.split(start.replace("%i", instance))
        subprocess.run([program, f"--root={tmp_path}", *words], capture_output=True, timeout=60, check=True)
    users = [line.split(":") for line in (tmp_path / "etc/passwd").read_text().splitlines() if "headrace" in line]
    assert [(one[0], one[5]) for one in users] == [
        ("headrace-shop", "/var/lib/headrace-shop"),
        ("headrace-other", "/var/lib/headrace-other"),
    ]
    assert users[0][2] != users[1][2]
    assert keys("Service", INSTANCE)["StateDirectoryMode"] == ["0700"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_names_of_credentials_are_those_that_references_search(unit: Path) -> None:
    service = keys("Service", unit)
    (loaded,) = service["LoadCredential"]
    name, _, folder = loaded.partition(":")
    assert f"{name}_" == UNIT_PREFIX
    # The command's own folder: beside the file that the unit names.
    assert Path(folder) == secrets_beside(Path(service["ExecStart"][0].rpartition(" ")[2]))
    # With a value of the same id a folder that is missing does not end the start.
    assert service["SetCredential"] == [f"{name}:none"]


@pytest.mark.parametrize("unit", [CONSUME, SPARK], ids=lambda unit: unit.name)
def test_a_drop_in_of_the_manual_has_a_consumer_load_only_its_own_secrets(unit: Path, tmp_path: Path) -> None:
    page = (SYSTEMD.parent / "docs" / "running.md").read_text()
    (drop_in,) = re.findall(r"```ini\n(\[Service\]\nLoadCredential=\n.*?)```", page, re.DOTALL)
    made = tmp_path / unit.name
    made.write_text(re.sub(r"/opt/headrace/bin/headrace[a-z-]*", sys.executable, unit.read_text()) + drop_in)
    done = systemd_analyze("verify", made)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first, *single = keys("Service", made)["LoadCredential"][1:]
    assert first == "", "the folder is taken away"
    assert single
    assert all(re.fullmatch(r"([a-z-]+):/etc/headrace/secrets/\1", one) for one in single)


def test_the_user_and_the_folders_of_secrets_are_made_by_systemd(tmp_path: Path) -> None:
    if not shutil.which("systemd-sysusers") or os.geteuid():
        pytest.skip("only root makes users, and only systemd by these files")
    (tmp_path / "etc").mkdir()
    for program, *words in (
        ("systemd-sysusers", SYSTEMD / "headrace.sysusers.conf"),
        ("systemd-tmpfiles", "--create", SYSTEMD / "headrace.tmpfiles.conf"),
    ):
        done = subprocess.run([program, f"--root={tmp_path}", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    (user,) = [line.split(":") for line in (tmp_path / "etc/passwd").read_text().splitlines() if "headrace" in line]
    assert (user[0], user[5], user[6]) == ("headrace", "/var/lib/headrace", "/usr/sbin/nologin")
    secrets, state = (tmp_path / "etc/headrace/secrets").stat(), (tmp_path / "var/lib/headrace").stat()
    assert (secrets.st_uid, secrets.st_gid, secrets.st_mode & 0o777) == (0, int(user[3]), 0o750)
    assert (state.st_uid, state.st_mode & 0o777) == (int(user[2]), 0o700)


def test_the_consumers_unit_is_hardened_as_the_daemons_and_gives_the_drain_its_time() -> None:
    ours, daemons = keys("Service", CONSUME), keys("Service")
    assert ours["ExecStart"] == ["/opt/headrace/bin/headrace-consume run --config /etc/headrace/consume.toml"]
    assert ours["RestartPreventExitStatus"] == ["2"]
    # The drain, and the closing of two connections and of the store of ids with their own limits.
    assert int(ours["TimeoutStopSec"][0]) >= 10 + 2 * 10 + 2
    own = {"Type", "ExecStart", "ExecReload", "EnvironmentFile", "WorkingDirectory", "User", "StateDirectory"}
    own |= {"NotifyAccess", "TimeoutStartSec", "WatchdogSec", "TimeoutStopSec", "MemoryMax", "TasksMax", *USERS}
    assert {key: value for key, value in ours.items() if key not in own} == {
        key: value for key, value in daemons.items() if key not in own
    }
    assert keys("Install", CONSUME)["WantedBy"] == ["multi-user.target"]


def test_the_spark_consumers_unit_is_hardened_as_the_daemons_but_for_what_java_needs() -> None:
    ours, daemons = keys("Service", SPARK), keys("Service")
    assert ours["ExecStart"] == ["/opt/headrace/bin/headrace-spark run --config /etc/headrace/spark.toml"]
    assert ours["Type"] == ["notify"]
    assert ours["Restart"] == ["always"]
    # The drain, and what the process gives Spark to end after it.
    spark = SparkSettings(checkpoint="c")
    assert int(ours["TimeoutStopSec"][0]) > spark.drain_timeout + AFTER_DRAIN + STOP_LIMIT
    # The watchdog is fed for a while without a sign of life; both together are what a stuck process gets.
    assert int(ours["WatchdogSec"][0]) > FED_FOR
    own = {"ExecStart", "ExecReload", "EnvironmentFile", "WorkingDirectory", "User", "StateDirectory"}
    own |= {"WatchdogSec", "TimeoutStopSec", "MemoryMax", "TasksMax", *USERS}
    assert {key: value for key, value in ours.items() if key not in own} == {
        key: value for key, value in daemons.items() if key not in own | {"MemoryDenyWriteExecute"}
    }
    assert keys("Install", SPARK)["WantedBy"] == ["multi-user.target"]
