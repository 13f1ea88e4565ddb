"""The scripts that dpkg runs: an upgrade ends whatever the service does meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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


def test_an_upgrade_gives_what_an_instance_has_to_the_user_that_it_has_now(tmp_path: Path) -> None:
    if not shutil.which("systemd-sysusers") or os.geteuid():
        pytest.skip("only root makes users, and only systemd by these lines")
    root, config = tmp_path / "root", tmp_path / "root/etc/headrace/shop"
    state, others = root / "var/lib/headrace-shop", root / "var/lib/headrace"
    for folder in (config / "secrets", state / "spool", others, root / "usr/lib/sysusers.d"):
        folder.mkdir(parents=True)
    shutil.copy(SCRIPTS.parents[1] / "systemd/headrace.sysusers.conf", root / "usr/lib/sysusers.d/headrace.conf")
    (config / "headrace.toml").touch()
    destinations = config.parent / "destinations"
    destinations.mkdir()
    (destinations / "headrace.toml").touch()  # a destination of that name
    (config / "secrets/shop-password").touch()
    (state / "headrace.db").touch()
    subprocess.run(["systemd-sysusers", f"--root={root}", "headrace.conf"], capture_output=True, timeout=60, check=True)
    old = user_of(root, "headrace")
    for path in (state, *state.rglob("*"), others):
        os.chown(path, *old)
    for path in (config / "secrets", config / "secrets/shop-password"):
        os.chown(path, 0, old[1])
    (state / "of-root").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("systemd-tmpfiles", "deb-systemd-helper"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    for _ in range(2):
        done = subprocess.run(
            ["/bin/sh", SCRIPTS / "postinst", "configure", "0.0.9"],
            env={"PATH": f"{programs}:/usr/bin:/bin", "DPKG_ROOT": str(root)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, [line for line in done.stderr.splitlines() if "headrace:" in line]) == (0, [])
    assert "headrace-destinations" not in (root / "etc/passwd").read_text()
    new = user_of(root, "headrace-shop")
    assert new[0] != old[0]
    owned = [(path.stat().st_uid, path.stat().st_gid) for path in (state, state / "headrace.db", state / "spool")]
    assert owned == [new] * 3
    assert (state / "of-root").stat().st_uid == 0
    assert {path.stat().st_gid for path in (config / "secrets", config / "secrets/shop-password")} == {new[1]}
    assert (others.stat().st_uid, others.stat().st_gid) == old


def user_of(root: Path, name: str) -> tuple[int, int]:
    """Numbers of a user and its group below another root."""
    (found,) = [
        line.split(":") for line in (root / "etc/passwd").read_text().splitlines() if line.startswith(f"{name}:")
    ]
    return int(found[2]), int(found[3])
