"""docs/getting-started.md, done as it is written, on a server of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pymysql
import pytest

from devstack import Stack
from devstack.ports import free_port
from tests.support import eventually, read_jsonl

pytestmark = pytest.mark.server

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def output_of(script: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the commands print, once the destination streams: the message may come a moment before."""
    done = [subprocess.CompletedProcess[str]([], 1)]

    def well() -> bool:
        done[0] = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
        )
        return done[0].returncode == 0 and "STREAMING" in done[0].stdout

    eventually(well, 30, lambda: str(done[0]))
    return done[0]


def test_the_page_leads_from_a_server_to_the_first_message(stack: Stack, tmp_path: Path) -> None:
    began = time.monotonic()
    server = stack.mysql(name="getting-started")
    accounts, changes = blocks("sql")
    install, init, check, run, see = blocks("sh")
    assert "pip install ." in install  # tests/packaging installs what is built
    with pymysql.connect(**server.connection("root"), autocommit=True) as root, root.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS 'canal'@'%'")
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.items (id INT PRIMARY KEY)")
        for statement in accounts.split(";\n")[:-1]:
            cursor.execute(statement)
        port, log = free_port(), tmp_path / "log"
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "headrace"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m headrace.cli.main "$@"\n')
        program.chmod(0o755)
        export, command = init.splitlines()
        # Where the page has the usual ports, the test has ports of its own.
        script = (
            f"set -e\n{export}\n{command} --port {server.port}\nsed -i 's/:9180/:{port}/' try/headrace.toml\n{check}"
        )
        environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "all is well" in done.stdout
        with log.open("wb") as out:
            daemon = subprocess.Popen(
                ["bash", "-c", f"{export}\nexec {run}"],
                cwd=tmp_path, env=environment, stdout=out, stderr=out,
            )  # fmt: skip
        try:
            eventually(lambda: "streaming" in log.read_text(), 30, log.read_text)
            for statement in changes.split(";\n")[:-1]:
                cursor.execute(statement)
            out_file = tmp_path / "try" / "shop.jsonl"
            eventually(lambda: out_file.exists() and "Anne" in out_file.read_text(), 30, log.read_text)
            shown = output_of(f"set -e\n{export}\n{see}", tmp_path, environment)
            assert '"name":"Anne"' in shown.stdout
            daemon.terminate()
            assert daemon.wait(20) == 0
        finally:
            daemon.kill()
            daemon.wait()
    assert read_jsonl(out_file)[-1]["data"] == [{"id": "1", "name": "Anne"}]
    assert time.monotonic() - began < 300
