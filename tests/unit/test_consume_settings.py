"""The RabbitMQ consumer's configuration and command: everything wrong is told at once, and nothing as a traceback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from headrace_consume import cli
from headrace_consume.settings import RetrySettings, load_settings
from headrace_documents.errors import SettingsError
from tests.config_problems import by_key

ROOT = Path(__file__).parents[2]
GOOD = """
[rabbitmq]
hosts = "127.0.0.1:{rabbit}"
user = "u"
password = "s3cret"
queue = "q"
timeout = 2
[elasticsearch]
hosts = ["http://127.0.0.1:{elastic}"]
"""


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    logging = structlog.get_config()
    yield
    structlog.configure(**logging)


def write(folder: Path, text: str) -> Path:
    path = folder / "consume.toml"
    path.write_text(text)
    return path


def problems(path: Path) -> dict[str, str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(path)
    return by_key(caught.value, path)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_config_of_the_project_is_good_and_shows_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBITMQ_PASSWORD", "p")
    path = ROOT / "config" / "consume.toml"
    settings = load_settings(path)
    assert settings.rabbitmq.prefetch == 200
    assert settings.retry.delays() == [1.0, 10.0, 100.0]
    text = path.read_text()
    for section in type(settings).model_fields:
        for key in type(getattr(settings, section)).model_fields:
            assert f"\n{key} =" in text or f"\n# {key} =" in text, f"{section}.{key}"


def test_the_defaults_name_the_queues_of_dead_letters(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, GOOD.format(rabbit=1, elastic=1)))
    assert (settings.dead_queue, settings.operator_queue) == ("q.dead", "q.dead.operator")
    assert settings.rabbitmq.addresses == [("127.0.0.1", 1)]
    assert "s3cret" not in repr(settings)


def test_all_problems_at_once(tmp_path: Path) -> None:
    text = """
[rabbitmq]
hosts = ["nowhere"]
user = ""
password = "${NOT_THERE_AT_ALL}"
prefetch = 0
colour = "red"
[elasticsearch]
hosts = ["127.0.0.1:9200"]
[retry]
delay = "soon"
[duplicates]
store = "memory"
[more]
"""
    found = problems(write(tmp_path, text))
    assert found["rabbitmq.hosts"] == 'should be a host and a port, as in "127.0.0.1:9180"'
    assert found["rabbitmq.colour"] == "unknown key"
    assert found["rabbitmq.queue"] == "is missing"
    assert found["rabbitmq.password"] == "the environment variable NOT_THERE_AT_ALL is not set"
    assert found["more"] == "unknown key"
    assert found.keys() >= {
        "rabbitmq.user",
        "rabbitmq.prefetch",
        "elasticsearch.hosts[0]",
        "retry.delay",
        "duplicates.store",
    }


@pytest.mark.parametrize(
    ("extra", "key", "text"),
    [
        ('[dead_letters]\nqueue = "q"', "", "three different ones"),
        ('[dead_letters]\nqueue = "d"\noperator_queue = "d"', "", "three different ones"),
        ("[retry]\ndelay = 20", "retry", "no more than 1500 s"),
        ('[duplicates]\nstore = "sqlite"', "duplicates", "path is required"),
        ('[duplicates]\nstore = "redis"\nurl = "localhost"', "duplicates", "should begin with redis://"),
    ],
)
def test_rules_between_keys(tmp_path: Path, extra: str, key: str, text: str) -> None:
    assert text in problems(write(tmp_path, GOOD.format(rabbit=1, elastic=1) + extra))[key]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('tls_ca = "/no/such/file"', "there is no file"),
        ('exchange = "x"', "no meaning without declare"),
        ('tls_key = "/etc/hosts"', 'no meaning with tls = "disabled"'),
    ],
)
def test_rules_of_the_broker(tmp_path: Path, line: str, text: str) -> None:
    config = GOOD.format(rabbit=1, elastic=1).replace("[elasticsearch]", f"{line}\n[elasticsearch]")
    assert text in " ".join(problems(write(tmp_path, config)).values())


def test_a_queue_with_too_long_a_name_for_its_dead_letters(tmp_path: Path) -> None:
    config = GOOD.format(rabbit=1, elastic=1).replace('"q"', f'"{"q" * 250}"')
    assert "longer than 255 bytes" in problems(write(tmp_path, config))[""]


def test_no_retries_are_possible() -> None:
    assert RetrySettings.model_validate({"attempts": 0}).delays() == []


def test_check_reports_everything_that_is_unreachable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD.format(rabbit=closed_port(), elastic=closed_port())
    text += f'[duplicates]\nstore = "redis"\ntimeout = 1\nurl = "redis://127.0.0.1:{closed_port()}/0"\n'
    assert cli.main(["check", "--config", str(write(tmp_path, text))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["wrong"] * 3 + ["not"]
    assert "RabbitMQ can't be reached: 127.0.0.1:" in lines[0]
    assert "does not answer" in lines[1]
    assert "duplicates: redis: Redis can't be used" in lines[2]
    assert "s3cret" not in "".join(lines)


def test_no_index_is_filled_again(tmp_path: Path) -> None:
    text = GOOD.format(rabbit=1, elastic=1) + 'on_mapping_conflict = "reindex"\n'
    assert problems(write(tmp_path, text)) == {
        "elasticsearch": 'on_mapping_conflict = "reindex" is for headrace-spark: headrace-consume reads no tables, so '
        'leave it at "dead_letter"'
    }
