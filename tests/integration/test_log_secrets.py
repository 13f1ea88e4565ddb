"""A run at debug level, with everything that may go wrong on the way: no line, page or file but the token's holds a
secret, and each line of a destination names it and its epoch."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = pytest.mark.server

SECRET = "k4fka-pa55word-of-the-tests"
TOKEN = "t0ken-of-the-tests-and-no-other"


def test_no_secret_is_logged_at_debug_level_and_lines_name_destination_and_epoch(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    sink = f'type = "jsonl"\npath = "{out}"'
    wrong = ('password = "${TEST_PASSWORD}"', f'password = "{SECRET}"')
    text = destination_toml(mysql_site.server, mysql_site.schema, f'type = "jsonl"\npath = "{out}.2"').replace(*wrong)
    away = destination_toml(
        mysql_site.server,
        f"{mysql_site.schema}_2",
        f'type = "kafka"\nbootstrap_servers = "127.0.0.1:1"\nuser = "u"\npassword = "{SECRET}"\n'
        'sasl_mechanism = "PLAIN"\nrequest_timeout = "1s"',
    ).replace(*wrong)
    well = destination_toml(mysql_site.server, mysql_site.schema, sink)
    process = daemon(well=well, away=away, ill=text)
    main = process.folder / "headrace.toml"
    main.write_text(main.read_text().replace('format = "json"', 'format = "json"\nlevel = "debug"'))
    main.write_text(main.read_text().replace("[http]\n", f'[http]\ntoken = "{TOKEN}"\n'))
    process.start()
    process.wait_state("well", "STREAMING")
    mysql_site.run("CREATE TABLE p (id INT PRIMARY KEY)", "INSERT INTO p VALUES (1)")
    process.wait("well", lambda status: status["rows"] == 1)
    process.wait("away", lambda status: status["last_error"] != "")
    process.wait("ill", lambda status: status["last_error"] != "")
    assert process.command("restart", "well")[0] == 0
    eventually(lambda: process.log.read_text().count('"event": "streaming"') == 2)
    shown = [process.command("config", "show")[1], process.command("status")[1], process.command("status", "--json")[1]]
    shown.append(str(process.health()))
    for path in ("metrics", "api/v1/openapi.json", "api/v1/destinations", ""):
        with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/{path}", timeout=10) as answer:
            shown.append(answer.read().decode())
    assert process.terminate() == 0
    log = process.log.read_text()
    for secret in (SECRET, TOKEN, '"canal"}', "password=canal"):
        assert secret not in log
        assert all(secret not in one for one in shown)
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    streaming = [one for one in lines if one["event"] == "streaming"]
    assert [one["destination"] for one in streaming] == ["well", "well"]
    assert streaming[0]["epoch"] < streaming[1]["epoch"]
