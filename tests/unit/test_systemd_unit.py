"""The systemd unit: accepted by systemd itself where it is installed, and by our own reading of it everywhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_spark.java.ending import AFTER_DRAIN, STOP_LIMIT
from headrace_spark.query.watching import FED_FOR
from headrace_spark.settings.settings import SparkSettings

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNIT = SYSTEMD / "headrace.service"
CONSUME = SYSTEMD / "headrace-consume.service"
SPARK = SYSTEMD / "headrace-spark.service"


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


@pytest.mark.parametrize(
    ("unit", "kind"), [(UNIT, "notify"), (CONSUME, "exec"), (SPARK, "notify")], ids=lambda value: str(value)
)
def test_systemd_accepts_it(unit: Path, kind: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        # A machine without systemd: what the other test reads is all that can be known here.
        assert keys("Service", unit)["Type"] == [kind]
        return
    # The program's path must exist for the check, so a program that does takes its place; the rest is as shipped.
    text = re.sub(r"/opt/headrace/bin/headrace[a-z-]*", sys.executable, unit.read_text())
    (tmp_path / unit.name).write_text(text)
    done = subprocess.run([program, "verify", str(tmp_path / unit.name)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
    assert service["SystemCallFilter"][0] == "@system-service"
    assert int(service["WatchdogSec"][0]) == 30
    assert int(service["TimeoutStopSec"][0]) >= 10 + 3 + 5
    for key in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "DynamicUser", "ProtectKernelModules"):
        assert service[key] == ["yes"], key
    assert keys("Install")["WantedBy"] == ["multi-user.target"]


def test_the_consumers_unit_is_hardened_as_the_daemons_and_gives_the_drain_its_time() -> None:
    ours, daemons = keys("Service", CONSUME), keys("Service")
    assert ours["ExecStart"] == ["/opt/headrace/bin/headrace-consume run --config /etc/headrace/consume.toml"]
    assert ours["RestartPreventExitStatus"] == ["2"]
    # The drain, and the closing of two connections and of the store of ids with their own limits.
    assert int(ours["TimeoutStopSec"][0]) >= 10 + 2 * 10 + 2
    own = {"Type", "ExecStart", "ExecReload", "EnvironmentFile", "WorkingDirectory", "User", "StateDirectory"}
    own |= {"NotifyAccess", "TimeoutStartSec", "WatchdogSec", "TimeoutStopSec"}
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
    own |= {"WatchdogSec", "TimeoutStopSec"}
    assert {key: value for key, value in ours.items() if key not in own} == {
        key: value for key, value in daemons.items() if key not in own | {"MemoryDenyWriteExecute"}
    }
    assert keys("Install", SPARK)["WantedBy"] == ["multi-user.target"]
