"""A first configuration: what init writes is what check and run take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.site import Site

pytestmark = pytest.mark.server


def run(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "SHOP_PASSWORD": "canal"},
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def init(site: Site, folder: Path, *more: str) -> tuple[int, str]:
    server = ("--host", site.server.host, "--port", str(site.server.port), "--user", "canal")
    return run(folder, "init", "shop", *server, "--schema", site.schema, *more)


def test_what_init_writes_is_a_configuration_that_check_takes(mysql_site: Site, tmp_path: Path) -> None:
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    code, text = init(mysql_site, tmp_path, "--sink", f"jsonl:{tmp_path / 'out.jsonl'}")
    assert code == 0, text
    assert "next: set SHOP_PASSWORD, then: headrace check --config headrace.toml" in text
    written = (tmp_path / "destinations" / "shop.toml").read_text()
    assert 'password = "${SHOP_PASSWORD}"' in written
    assert '= "canal"' in written, "the account"
    code, text = run(tmp_path, "check", "--config", "headrace.toml")
    assert "all is well" in text, text
    assert "shop: ok      snapshot: the first start publishes about" in text, text


def test_a_schema_may_have_no_table_yet(mysql_site: Site, tmp_path: Path) -> None:
    assert init(mysql_site, tmp_path)[0] == 0
    code, text = run(tmp_path, "config", "check", "--config", "headrace.toml")
    assert (code, text) == (0, "headrace.toml: the configuration is right; destinations: shop\n")


def test_how_a_source_of_another_machine_is_reached_is_written(mysql_site: Site, tmp_path: Path) -> None:
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    code, text = init(mysql_site, tmp_path, "--host", "0.0.0.0")
    assert (code, 'tls = "required"' in text, list(tmp_path.iterdir())) == (1, True, []), text
    assert init(mysql_site, tmp_path, "--host", "0.0.0.0", "--tls", "required")[0] == 0
    assert '\ntls = "required"\n' in (tmp_path / "destinations" / "shop.toml").read_text()
    code, text = run(tmp_path, "check", "--config", "headrace.toml")
    assert "all is well" in text, text


@pytest.mark.parametrize("sink", ["kafka:127.0.0.1:9092", "rabbitmq:127.0.0.1:5672", "jsonl:-"])
def test_each_kind_of_sink_is_written_as_the_configuration_wants_it(
    mysql_site: Site, tmp_path: Path, sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBITMQ_PASSWORD", "guest")
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert init(mysql_site, tmp_path, "--sink", sink)[0] == 0
    code, text = run(tmp_path, "config", "check", "--config", "headrace.toml")
    assert (code, text) == (0, "headrace.toml: the configuration is right; destinations: shop\n")


def test_no_file_is_replaced(mysql_site: Site, tmp_path: Path) -> None:
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    (tmp_path / "destinations").mkdir()
    (tmp_path / "destinations" / "shop.toml").write_text("# mine\n")
    code, text = init(mysql_site, tmp_path)
    assert (code, "is there already" in text) == (1, True), text
    assert (tmp_path / "destinations" / "shop.toml").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--schema", "nosuch"), "the account sees no schema nosuch"),
        (("--sink", "carrier-pigeon:home"), "'carrier-pigeon:home' is no sink"),
        (("--port", "1"), "can't be reached"),
        (("--tls-ca", "/nowhere"), "--tls-ca: Value error, there is no file /nowhere"),
        (("--tls", "disabled", "--tls-ca", "/etc/hosts"), 'tls_ca has no meaning with tls = "disabled"'),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_section_and_nothing_is_written(
    mysql_site: Site, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    code, text = init(mysql_site, tmp_path, *more)
    assert code == 1
    assert said in text
    _sentence, section = text.strip().splitlines()
    assert section.startswith("see: docs/troubleshooting.md#"), text
    assert list(tmp_path.iterdir()) == []
