"""The scripts that dpkg runs: an upgrade ends whatever the service does meanwhile."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "packaging" / "deb"
_PROGRAMS = ("systemd-sysusers", "systemd-tmpfiles", "deb-systemd-helper")


def test_an_upgrade_ends_though_the_new_version_refuses_the_configuration(tmp_path: Path) -> None:
    # dpkg holds its lock while the script waits, and a script that fails leaves the package half-configured.
    running, programs, said = tmp_path / "systemd", tmp_path / "bin", tmp_path / "said"
    running.mkdir()
    programs.mkdir()
    for name in _PROGRAMS:
        (programs / name).write_text("#!/bin/sh\n")
    (programs / "systemctl").write_text(f'#!/bin/sh\necho "$*" >>{said}\ncase "$*" in *try-restart*) exit 1 ;; esac\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    script = (SCRIPTS / "postinst").read_text()
    assert "/run/systemd/system" in script
    done = subprocess.run(
        ["/bin/sh", "-c", script.replace("/run/systemd/system", str(running)), "postinst", "configure", "0.0.9"],
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (restart,) = [line for line in said.read_text().splitlines() if "try-restart" in line]
    assert restart == "--no-block try-restart headrace.service headrace@*.service headrace-consume.service"
