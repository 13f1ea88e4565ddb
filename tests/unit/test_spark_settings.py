"""The Spark consumer's configuration and command: everything wrong is told at once, and nothing as a traceback."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from headrace_documents.errors import SettingsError
from headrace_spark.cli import main as cli
from headrace_spark.errors import JavaError
from headrace_spark.session import session
from headrace_spark.settings import SparkSettings, load_settings, reindexed
from tests.config_problems import by_key

GOOD = """
[kafka]
bootstrap_servers = "127.0.0.1:{kafka}"
topics = ["shop"]
dead_letter_topic = "dead"
connect_timeout = 2
[elasticsearch]
hosts = ["http://127.0.0.1:{elastic}"]
[spark]
checkpoint = "checkpoint"
"""


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    logging = structlog.get_config()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    structlog.configure(**logging)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def write(folder: Path, text: str) -> Path:
    path = folder / "spark.toml"
    path.write_text(text)
    return path


def problems(path: Path) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    return by_key(caught.value, path)


def test_the_config_of_the_project_is_good() -> None:
    settings = load_settings(Path(__file__).parents[2] / "config" / "spark.toml")
    assert settings.spark.master == "local[2,4]"
    assert settings.elasticsearch.gc_deletes == "1h"


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = """
[kafka]
bootstrap_servers = "nowhere"
topics = "shop"
dead_letter_topic = "d"
colour = "red"
[elasticsearch]
hosts = ["127.0.0.1:9200"]
password = "${NOT_THERE_AT_ALL}"
tls_ca = "${file:/no/such/file}"
mappings_file = "/no/such/file"
bulk_actions = "many"
[spark]
trigger = "now and then"
[weather]
"""
    found = problems(write(tmp_path, text))
    assert found["kafka.bootstrap_servers"] == 'should be a host and a port, as in "127.0.0.1:9180"'
    assert found["kafka.colour"] == "unknown key"
    assert found["weather"] == "unknown key"
    assert found["elasticsearch.password"] == "the environment variable NOT_THERE_AT_ALL is not set"
    assert found["spark.checkpoint"] == "is missing"
    assert found.keys() >= {
        "kafka.topics",
        "elasticsearch.hosts[0]",
        "elasticsearch.tls_ca",
        "elasticsearch.mappings_file",
        "elasticsearch.bulk_actions",
        "spark.trigger",
    }


def test_rules_between_keys(tmp_path: Path) -> None:
    text = GOOD.format(kafka=1, elastic=1).replace('"dead"', '"shop"').replace("[spark]", 'user = "u"\n[spark]')
    found = problems(write(tmp_path, text))
    assert "go round for ever" in found["kafka"]
    assert "belong together" in found["elasticsearch"]


@pytest.mark.parametrize(("text", "said"), [("[kafka", "not TOML"), ("\udcff", "line 1: not UTF-8 text")])
def test_no_toml(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "spark.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert said in problems(path)[""]


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("geheim ${not.expanded.again}\n")
    monkeypatch.setenv("ES_USER", "anna")
    extra = f'user = "${{ES_USER}}"\npassword = "${{file:{secret}}}"\nindex = "$${{table}}"\n[spark]'
    settings = load_settings(write(tmp_path, GOOD.format(kafka=1, elastic=1).replace("[spark]", extra)))
    assert settings.elasticsearch.user == "anna"
    assert settings.elasticsearch.password.get_secret_value() == "geheim ${not.expanded.again}"
    assert settings.elasticsearch.index == "${table}"
    assert "geheim" not in repr(settings)


def test_a_wrong_config_ends_with_2_and_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--config", str(tmp_path / "none.toml")]) == 2
    assert cli.main(["run", "--config", str(write(tmp_path, "[kafka]\n"))]) == 2
    error = capsys.readouterr().err
    assert "none.toml: the file can't be read: No such file or directory" in error
    assert "spark.toml: kafka.topics: is missing" in error
    assert "Traceback" not in error


def test_what_is_to_end_waits_for_an_absent_server_only_so_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = 'patience = "1s"\n[http]\nlisten = "127.0.0.1:0"\n'
    config = write(tmp_path, GOOD.format(kafka=closed_port(), elastic=closed_port()) + rest)
    assert cli.main(["run", "--available-now", "--config", str(config)]) == 1
    assert "Kafka can't be reached: 127.0.0.1:" in capsys.readouterr().err


def test_indexes_may_be_in_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "indexes"
    folder.mkdir()
    own = "[[index]]\nname = 'services'\ntables = ['shop.serve']\n"
    config = write(tmp_path, GOOD.format(kafka=1, elastic=1) + own)
    (folder / "orders.toml").write_text("[[index]]\nname = 'orders'\ntables = ['shop.orders']\n")
    (folder / "notes.txt").write_text("no TOML")
    assert [one.name for one in load_settings(config).index] == ["services", "orders"]
    (folder / "more.toml").write_text(own.replace("services", "Services"))
    (folder / "wrong.toml").write_text("[[index]]\nname = 'x'\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(config)
    assert caught.value.problems == [
        f"{folder}/wrong.toml: index[0].tables: is missing",
        f"{folder}/more.toml: index Services is declared twice, the first time in {config}",
    ]


def test_a_start_may_be_a_time(tmp_path: Path) -> None:
    good = GOOD.format(kafka=1, elastic=1)

    def start(text: str) -> str:
        return good.replace("connect_timeout", f'starting_offsets = "{text}"\nconnect_timeout')

    made = load_settings(write(tmp_path, start("2026-11-22T10:00:00+01:00"))).kafka.start_options()
    assert made == {"startingTimestamp": "1795338000000", "startingOffsetsByTimestampStrategy": "latest"}
    assert load_settings(write(tmp_path, start("latest"))).kafka.start_options() == {"startingOffsets": "latest"}
    for wrong in ("2026-11-22T10:00:00", "yesterday"):
        assert "a time with a zone" in problems(write(tmp_path, start(wrong)))["kafka.starting_offsets"]


def test_nobody_answers_the_question_for_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = GOOD.format(kafka=1, elastic=1)
    port = closed_port()
    assert cli.main(["status", "--config", str(write(tmp_path, f'{good}[http]\nlisten = "127.0.0.1:{port}"\n'))]) == 1
    assert f"no headrace-spark answers at 127.0.0.1:{port} (connection refused)" in capsys.readouterr().err
    assert cli.main(["status", "--config", str(write(tmp_path, f'{good}[http]\nlisten = ""\n'))]) == 1
    assert "[http] listen is empty" in capsys.readouterr().err


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["run", "--config", str(write(tmp_path, GOOD.format(kafka=1, elastic=1)))]) == 2
    assert "no Java found" in capsys.readouterr().err


@pytest.mark.parametrize(("version", "good"), [("1.8.0_292", False), ("11.0.2", False), ("17.0.9", True), ("25", True)])
def test_old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, good: bool) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if good:
        assert session.check_java() == version.split(".")[0]
    else:
        with pytest.raises(JavaError, match=r"Java (8|11)\. Spark needs Java 17"):
            session.check_java()


def test_resolved_jars_are_used_again(tmp_path: Path) -> None:
    settings = SparkSettings(checkpoint="c", ivy=str(tmp_path))
    assert session.local_jars(settings) == []
    name = session.kafka_package().split(":", 1)[1].replace(":", "-")
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a.jar").touch()
    (tmp_path / f"{name}.jars").write_text("a.jar\n")
    assert session.local_jars(settings) == [str(tmp_path / "jars" / "a.jar")]
    (tmp_path / "jars" / "a.jar").unlink()
    assert session.local_jars(settings) == []


def test_verify_without_what_it_needs_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = GOOD.format(kafka=1, elastic=1)
    source = '\n[source]\nhost = "127.0.0.1"\nuser = "u"\npassword = "p"\n'
    for text, words, said in (
        (good, (), "this command reads tables: the section [source] is missing"),
        (good + source, (), "has no [[index]]: say with --index which to compare"),
        (good + source, ("--index", "Serv*"), "--index serv*: one name without wildcards"),
    ):
        assert cli.main(["verify", "--config", str(write(tmp_path, text)), *words]) == 2
        assert said in capsys.readouterr().err


SOURCE = "[source]\nhost = '127.0.0.1'\nuser = 'u'\npassword = 'p'\n"
DECLARED = "[[index]]\nname = 'services'\ntables = ['shop.serve']\n"
REINDEX = "on_mapping_conflict = 'reindex'\n"


def test_which_indexes_are_filled_again_when_a_type_changes(tmp_path: Path) -> None:
    good = GOOD.format(kafka=1, elastic=1)
    assert not reindexed(load_settings(write(tmp_path, good + DECLARED)))
    assert list(reindexed(load_settings(write(tmp_path, good + SOURCE + DECLARED + REINDEX)))) == ["services"]
    everywhere = good.replace("[spark]", f"{REINDEX}[spark]") + SOURCE + DECLARED.replace("services", "Services")
    assert list(reindexed(load_settings(write(tmp_path, everywhere)))) == ["services"]
    own = f"{everywhere}on_mapping_conflict = 'dead_letter'\n"
    assert not reindexed(load_settings(write(tmp_path, own)))


def test_what_can_not_be_filled_again_is_an_error_with_its_place(tmp_path: Path) -> None:
    def said(text: str) -> list[str]:
        path = write(tmp_path, text)
        with pytest.raises(SettingsError) as caught:
            load_settings(path)
        assert all(one.startswith(f"{path}: ") for one in caught.value.problems)
        return [one.removeprefix(f"{path}: ") for one in caught.value.problems]

    good = GOOD.format(kafka=1, elastic=1)
    what = 'on_mapping_conflict = "reindex"'
    missing = f"{what} fills indexes from the tables: the section [source] is missing"
    assert said(good + DECLARED + REINDEX) == [missing]
    assert said(good + SOURCE + DECLARED.replace("services", "{table}") + REINDEX) == [
        f"index {{table}}: {what} needs an index with one name, without placeholders"
    ]
    assert said(good + SOURCE + DECLARED + REINDEX + "template = true\n") == [
        f"index services: {what} has no meaning with template = true: the cluster's template says the types, not the "
        "columns"
    ]
    unmade = good.replace("[spark]", "create_index = false\n[spark]")
    assert said(unmade + SOURCE + DECLARED + REINDEX) == [
        f"{what} makes indexes: it needs create_index = true in [elasticsearch]"
    ]
    everywhere = good.replace("[spark]", f"{REINDEX}[spark]") + SOURCE
    undeclared = said(everywhere)
    assert undeclared == said(everywhere.replace(REINDEX, f"{REINDEX}index = 'a'\n") + DECLARED)
    assert "is for indexes that [[index]] declares" in undeclared[0]
