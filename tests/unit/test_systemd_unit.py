"""The systemd unit: accepted by systemd itself where it is installed, and by our own reading of it everywhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

UNIT = Path(__file__).parents[2] / "systemd" / "headrace.service"


def keys(section: str) -> dict[str, list[str]]:
    """The section's keys with their values, in order; systemd allows a key many times."""
    found: dict[str, list[str]] = {}
    current = ""
    for line in UNIT.read_text().splitlines():
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


def test_systemd_accepts_it(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        # A machine without systemd: what the other test reads is all that can be known here.
        assert keys("Service")["Type"] == ["notify"]
        return
    # The program's path must exist for the check, so a program that does takes its place; the rest is as shipped.
    text = UNIT.read_text().replace("/opt/headrace/bin/headrace", sys.executable)
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run([program, "verify", str(tmp_path / UNIT.name)], capture_output=True, text=True, timeout=60)
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
