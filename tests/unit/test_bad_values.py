"""Values that no configuration can have: each is one sentence with its key, in the daemon's files and in others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace_common.tls import TlsFileError, client_context
from headrace_consume import cli as consume_cli
from headrace_consume.settings import load_settings
from headrace_documents.elastic import bulk as elastic
from headrace_documents.errors import SettingsError, UnreachableError
from headrace_documents.settings import ElasticsearchSettings
from tests.certificates import Authority
from tests.config_problems import by_key
from tests.configured import load

CONSUMER = """
[rabbitmq]
hosts = "127.0.0.1:1"
user = "u"
password = "p"
queue = "q"
{rabbitmq}
[elasticsearch]
hosts = ["http://127.0.0.1:1"]
{elasticsearch}
{more}
"""
DESTINATION = """
[source]
host = "127.0.0.1"
user = "u"
password = "p"
{source}
[sink]
type = "null"
{more}
"""


def consumer_problems(folder: Path, **parts: str) -> dict[str, str]:
    path = folder / "consume.toml"
    path.write_text(CONSUMER.format(**{"rabbitmq": "", "elasticsearch": "", "more": "", **parts}))
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    return by_key(caught.value, path)


def daemon_problems(folder: Path, main: str = "", **parts: str) -> list[str]:
    (folder / "destinations").mkdir(exist_ok=True)
    (folder / "headrace.toml").write_text(main)
    text = DESTINATION.format(**{"source": "", "more": "", **parts})
    (folder / "destinations" / "shop.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(folder / "headrace.toml", {})
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('tls = "required"\ntls_ca = "/etc"', "/etc is no file"),
        ('tls = "required"\ntls_ca = ""', "should be the path of a file"),
        (f'tls = "required"\ntls_ca = "{"x" * 300}"', "can't be read: File name too long"),
        ('tls = "required"\ntls_ca = "a\\u0000b"', "should have no NUL character"),
        (f"timeout = 1{'0' * 400}", "is too large"),
        ('timeout = "${file:/dev/null}"', "/dev/null is no regular file"),
    ],
)
def test_values_of_the_consumer(tmp_path: Path, line: str, said: str) -> None:
    (problem,) = consumer_problems(tmp_path, rabbitmq=line).values()
    assert said in problem


@pytest.mark.parametrize(
    ("parts", "key", "said"),
    [
        ({"more": "[retry]\nattempts = 1000\nfactor = 100"}, "retry", "no more than 1500 s"),
        ({"elasticsearch": 'index = "{schema}.{table}"'}, "elasticsearch.index", "{database} and {table} only, not {s"),
        ({"elasticsearch": 'tls_ca = "/etc/hosts"'}, "elasticsearch", "no meaning without a host of https://"),
    ],
)
def test_rules_of_the_consumer(tmp_path: Path, parts: dict[str, str], key: str, said: str) -> None:
    assert said in consumer_problems(tmp_path, **parts)[key]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://anna:geheim@127.0.0.1:9200", "should have no account"),
        ("http://h:99999", "should be a URL with scheme, host and port"),
        ("h:9200", "should be a URL with scheme, host and port"),
        ("http://a..b:9200", "'a..b' can't be one"),
    ],
)
def test_addresses_of_elasticsearch(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")) as caught:
        ElasticsearchSettings.model_validate({"hosts": [url]})
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"main": '[state]\nstore = ""'}, "headrace.toml: state.store: should be one of auto, "),
        ({"main": '[state]\npath = "/etc"'}, "headrace.toml: state.path: /etc is a folder"),
        ({"main": '[daemon]\nspool = "/etc/hosts"'}, "headrace.toml: daemon.spool: /etc/hosts is no folder"),
        ({"main": '[daemon]\nspool = ""'}, 'headrace.toml: daemon.spool: is empty; the working directory is "."'),
        ({"main": '[http]\nlisten = "a..b:1"'}, "headrace.toml: http.listen: should be the name or address of a host"),
        ({"main": f"x = {'1' * 5000}"}, "headrace.toml: not TOML: "),
        ({"more": '[state]\nstore = ""'}, "destinations/shop.toml: state.store: should be one of auto, "),
        ({"source": 'standby = [{host = "a..b"}]'}, "destinations/shop.toml: source.standby[0].host: should be the na"),
        (
            {"source": "retention_warning = true"},
            "destinations/shop.toml: source.retention_warning: should be a number",
        ),
        ({"source": "standby = 1"}, "destinations/shop.toml: source.standby: should be a list"),
    ],
)
def test_values_of_the_daemon(tmp_path: Path, given: dict[str, Any], problem: str) -> None:
    found = daemon_problems(tmp_path, **given)
    assert any(one.startswith(problem) for one in found), found


def test_kafka_s_brokers_have_no_scheme(tmp_path: Path) -> None:
    (tmp_path / "destinations").mkdir()
    (tmp_path / "headrace.toml").write_text("")
    sink = '[route]\ntopic = "t"\n[sink]\ntype = "kafka"\nbootstrap_servers = "http://h:9092"\n'
    text = DESTINATION.format(source="", more="").split("[sink]")[0] + sink
    (tmp_path / "destinations" / "shop.toml").write_text(text)
    with pytest.raises(ConfigError, match="without a scheme"):
        load(tmp_path / "headrace.toml", {})


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "ca.pem"
    path.touch()
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ValueError, match=r"ca\.pem can't be read: Permission denied"):
        ElasticsearchSettings.model_validate({"hosts": ["https://h:1"], "tls_ca": path})


def test_a_file_of_tls_that_can_not_be_used_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key, _ = authority.make("client")
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other").make("client")[1]
    with pytest.raises(TlsFileError, match=r"tls_certificate, .*, or tls_key, .*, can't be used"):
        client_context(None, certificate, other)
    locked = tmp_path / "locked.key"
    locked.write_bytes(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n" + key.read_bytes())
    with pytest.raises(TlsFileError, match=r"tls_key, .*locked\.key, can't be used \(its key has a password\)"):
        client_context(None, certificate, locked)
    (tmp_path / "empty.pem").touch()
    settings = ElasticsearchSettings.model_validate({"hosts": ["https://h:1"], "tls_ca": tmp_path / "empty.pem"})
    with pytest.raises(UnreachableError, match=r"\[elasticsearch\] tls_ca, .*empty\.pem, can't be used"):
        elastic.check(settings)


def test_no_password_is_printed_for_an_account_that_is_not_ascii(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "consume.toml"
    account = 'user = "elastic"\npassword = "geheim密码"'
    path.write_text(CONSUMER.format(rabbitmq="timeout = 1", elasticsearch=account, more=""))
    assert consume_cli.main(["check", "--config", str(path)]) == 1
    reported = "".join(capfd.readouterr())
    assert "Elasticsearch at http://127.0.0.1:1 does not answer" in reported
    assert "geheim" not in reported
    assert "Traceback" not in reported
